"""The README's examples run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from partialfusion.cli import app

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    examples = blocks("python")
    assert examples
    for code in examples:
        scope: dict[str, object] = {}
        exec(code, scope)
        assert isinstance(scope["logits"], torch.Tensor)
        assert tuple(scope["logits"].shape) == (2, 10)
    printed = capsys.readouterr().out
    assert "converged" in printed
    assert "self-check" in printed


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [c for block in blocks("sh") for c in block.splitlines() if c.startswith("partialfusion ")]
    assert len(commands) == 3
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
    assert (tmp_path / "digits" / "fused.safetensors").exists()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
