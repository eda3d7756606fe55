"""`partialfusion study`: list, run, resume, report, and one line for what is wrong."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from partialfusion import cli

pytestmark = pytest.mark.usefixtures("small_study")


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["study", *map(str, words)])


def test_run_then_report(tmp_path: Path):
    first = call("run", "params_p", "--quick", "--workers", 0, "--results", tmp_path, "--json")
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["cells"]["computed"] == 4
    again = call("run", "params_p", "--quick", "--workers", 0, "--results", tmp_path, "--json")
    assert json.loads(again.stdout)["cells"] | {"seconds": 0} == {"computed": 0, "reused": 4, "failed": 0, "seconds": 0}
    written = call("report", "--quick", "--results", tmp_path)
    assert written.exit_code == 0, written.output
    assert (tmp_path / "params_p.md").exists()
    assert "left out: split_data" in written.stdout


def test_worker_processes_compute_the_same(tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    assert call("run", "params_p", "--quick", "--workers", 0, "--results", here).exit_code == 0
    assert call("run", "params_p", "--quick", "--workers", 2, "--results", there).exit_code == 0
    results = [
        {r["key"]: r["result"] for r in map(json.loads, (f / "cells/Counts.jsonl").read_text().splitlines())}
        for f in (here, there)
    ]
    assert results[0] == results[1]
    assert len(results[0]) == 4


def test_list_names_every_experiment_and_what_is_missing(tmp_path: Path):
    found = json.loads(call("list", "--quick", "--results", tmp_path, "--json").stdout)
    assert len(found) == 37
    assert all(e["missing"] == e["cells"] > 0 for e in found)
    assert "split_data" in call("list", "--results", tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nothing"], "there is no experiment 'nothing'"),
        (["run", "--quick", "--full"], "--quick and --full exclude each other"),
        (["run", "params_p", "--workers", "1", "--cluster", "tcp://x:1"], "exclude each other"),
        (["report", "params_p"], "params_p lacks"),
        (["report"], "there are no results"),
    ],
)
def test_mistakes_are_told_in_one_line(words: list[str], message: str, tmp_path: Path):
    result = call(*words, "--results", tmp_path)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_folder_without_the_data_is_an_error(tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    result = call("run", "params_p", "--quick", "--workers", 0, "--results", tmp_path, "--data", empty)
    assert result.exit_code == 1
    assert str(empty) in result.stderr


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    commands = [shlex.split(line, comments=True)[2:] for line in re.findall(r"^partialfusion study .*$", readme, re.M)]
    assert [words[0] for words in commands] == ["list", "run", "report"]
    monkeypatch.chdir(tmp_path)
    for words in commands:
        result = call(*words, "--quick")
        assert result.exit_code == 0, result.output
    assert (tmp_path / "results/quick/split_data.md").exists()
