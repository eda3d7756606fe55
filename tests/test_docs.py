"""The examples of the README and of all pages run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from partialfusion.blueprint.registry import RULES
from partialfusion.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def check_readme(scope: dict[str, Any], printed: str, folder: Path) -> None:
    assert tuple(scope["logits"].shape) == (2, 10)
    assert scope["small"].model.stem.out_channels == scope["quick"].model.stem.out_channels == 16
    assert scope["large"].plan["hidden"].width == 64 + round(0.2 * 64)
    assert scope["large"].plan["stem"].width == 32 + round(0.6 * 32)
    assert {"fused.safetensors", "fused.onnx"} <= {p.name for p in folder.iterdir()}
    for part in ("converged", "self-check", "combined", "source 0: Net"):
        assert part in printed


def check_custom_operations(scope: dict[str, Any], printed: str, folder: Path) -> None:
    assert scope["blueprint"]["a"].kind == "elastic"


CHECKS = {"README.md": check_readme, "docs/custom-operations.md": check_custom_operations}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "examples").glob("*.md"))]
WITH_CODE = {str(page.relative_to(ROOT)): code for page in PAGES if (code := blocks("python", page.read_text()))}


@pytest.mark.parametrize("page", WITH_CODE)
def test_python_runs_as_printed(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page in their order, in one scope, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "page"}
    known = dict(RULES)
    with torch.random.fork_rng():
        for number, code in enumerate(WITH_CODE[page], 1):
            exec(compile(code, f"{page}, block {number}", "exec"), scope)
    for name in RULES.keys() - known.keys():  # those of the page's own operations
        del RULES[name]
    CHECKS.get(page, lambda *_: None)(scope, capsys.readouterr().out, tmp_path)


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("partialfusion ")]
    commands = [
        line for line in lines if not line.startswith("partialfusion study")
    ]  # see tests/study/test_commands.py
    assert [c.split()[1] for c in commands] == ["demo", "trace", "fuse", "convert", "prune", "frontier", "run"]
    (recipe,) = blocks("yaml")
    (tmp_path / "recipe.yaml").write_text(recipe)
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
    written = {p.name for p in (tmp_path / "digits").iterdir()}
    assert {"fused.safetensors", "fused.pt", "small.safetensors", "frontier.html", "recipe.safetensors"} <= written
    assert (tmp_path / "partialfusion-demo.html").exists()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target
