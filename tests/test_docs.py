"""The README's examples run as they are printed."""

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


def test_python_examples_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fusing, pruning, after = blocks("python")
    scope: dict[str, Any] = {}
    exec(fusing, scope)
    assert isinstance(scope["logits"], torch.Tensor)
    assert tuple(scope["logits"].shape) == (2, 10)
    printed = capsys.readouterr().out
    assert "converged" in printed
    assert "self-check" in printed
    exec(pruning, scope)
    assert scope["small"].model.conv1.out_channels == scope["quick"].model.conv1.out_channels == 8
    assert scope["large"].plan["layers.3.0.conv1"].width == 128 + round(0.2 * 128)
    assert "combined" in capsys.readouterr().out
    exec(after, scope)
    assert {"fused.safetensors", "fused.onnx"} <= {p.name for p in tmp_path.iterdir()}
    assert "source 0: ResNet18" in capsys.readouterr().out


def test_the_custom_operation_runs() -> None:
    code = blocks("python", (ROOT / "docs" / "custom-operations.md").read_text())
    assert len(code) == 1
    scope: dict[str, object] = {}
    try:
        exec(code[0], scope)
        assert scope["blueprint"]["a"].kind == "elastic"
    finally:
        del RULES["docs.squash"]


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("partialfusion ")]
    commands = [
        line for line in lines if not line.startswith("partialfusion study")
    ]  # see tests/study/test_commands.py
    assert [c.split()[1] for c in commands] == ["demo", "trace", "fuse", "convert", "prune", "run"]
    (recipe,) = blocks("yaml")
    (tmp_path / "recipe.yaml").write_text(recipe)
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
    written = {p.name for p in (tmp_path / "digits").iterdir()}
    assert {"fused.safetensors", "fused.pt", "small.safetensors", "recipe.safetensors"} <= written


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
