"""The study uses only the public library; what it needs beyond that is in one small module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import partialfusion as pf
import partialfusion_study

FOLDER = Path(partialfusion_study.__file__).parent
FILES = {str(path.relative_to(FOLDER)): path for path in sorted(FOLDER.rglob("*.py"))}
INTERNALS = "internals.py"

MODULES = {
    "partialfusion.core.cluster",
    "partialfusion.core.timing",
    "partialfusion.core.literals",
    "partialfusion.core.machine",
    "partialfusion.core.progress",
    "partialfusion.core.text",
    "partialfusion.errors",
    "partialfusion.io.digest",
    "partialfusion.io.files",
    "partialfusion.solvers",
}
NAMES = {*pf.__all__, "__version__"}
UNAVOIDABLE = {
    "partialfusion.core.inputs": {"Inputs"},
    "partialfusion.fusing.rounding": {"grids"},
    "partialfusion.kernels": {"Coupling", "merge"},
    "partialfusion.surgery": {"apply"},
}


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of everything taken from the library, wherever the import stands; the name is "" for a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names if is_library(node.module))
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if is_library(alias.name))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            assert not any(is_library(a.value) for a in node.args if isinstance(a, ast.Constant)), ast.unparse(node)


def is_library(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "partialfusion"


def is_public(module: str, name: str) -> bool:
    if module == "partialfusion":
        return not name or name in NAMES
    return module in MODULES and not name.startswith("_")


def attributes(tree: ast.AST) -> set[str]:
    """Names that are looked up on `pf`, as written: "fuse", "blocks.timing"."""
    found = (ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {name.split(".")[1] for name in found if name.startswith(("pf.", "partialfusion."))}


@pytest.mark.parametrize("file", [name for name in FILES if name != INTERNALS])
def test_only_public_names_are_used(file: str):
    tree = ast.parse(FILES[file].read_text())
    assert not [found for found in imports(tree) if not is_public(*found)]
    assert attributes(tree) <= NAMES


def test_the_unavoidable_internals_are_these():
    found: dict[str, set[str]] = {}
    for module, name in imports(ast.parse(FILES[INTERNALS].read_text())):
        found.setdefault(module, set()).add(name)
    assert found == UNAVOIDABLE


@pytest.mark.parametrize(
    "source",
    [
        "from partialfusion.kernels import merge",
        "import partialfusion.surgery",
        "from partialfusion import api",
        "def f():\n    from partialfusion.fusing.pipeline import Flow",
        "if TYPE_CHECKING:\n    from partialfusion.blueprint import Blueprint",
        "from partialfusion.io.files import _told",
    ],
)
def test_other_imports_are_noticed(source: str):
    assert [found for found in imports(ast.parse(source)) if not is_public(*found)]


def test_other_attributes_are_noticed():
    assert attributes(ast.parse("import partialfusion as pf\npf.surgery.apply(pf.fuse)")) == {"surgery", "fuse"}
