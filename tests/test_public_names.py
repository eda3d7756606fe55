"""The names of the package: all there, found when they are used, and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import partialfusion as pf

HELP = """
import sys
from typer.main import get_command
from typer.testing import CliRunner
from partialfusion.cli import app

commands = [[name] for name in get_command(app).commands] + [["study", "run"], []]
for command in commands:
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0, command
print(len(commands), "torch" in sys.modules, "numpy" in sys.modules)
"""


def test_help_needs_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=300)
    commands, *heavy = done.stdout.split()
    assert int(commands) > 5, done.stderr
    assert heavy == ["False", "False"]


def test_public_names_are_found_where_they_live() -> None:
    assert set(pf.__all__) <= set(dir(pf))
    for name in pf.__all__:
        assert not isinstance(getattr(pf, name), ModuleType), name
    errors = {name for name in pf.__all__ if name.endswith("Error")}
    assert set(pf._PLACES) == set(pf.__all__) - errors  # type: ignore[attr-defined]


def test_no_module_bears_a_public_name() -> None:
    """Importing it would set the attribute of the package, and hide the name."""
    modules = {path.stem for path in Path(pf.__file__).parent.iterdir()}
    assert not modules & set(pf.__all__)


def test_packages_are_found_when_they_are_used() -> None:
    code = "import sys, partialfusion as pf; print('torch' in sys.modules, pf.nn.ViewNorm, pf.solvers.couple)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("False <class"), done.stderr
    assert {"nn", "solvers"} <= set(dir(pf))


def test_other_names_are_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fusee'"):
        pf.fusee  # type: ignore[attr-defined]  # noqa: B018
