"""The examples run as they are, and what they show holds; fine_tune.py is among the tests of fine-tuning."""

from __future__ import annotations

import csv
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import onnxruntime
import pytest
import torch

import partialfusion as pf

pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _own_random_numbers() -> Iterator[None]:
    """Examples seed PyTorch as scripts do; other tests must not notice."""
    with torch.random.fork_rng(devices=[]):
        yield


def run(name: str, *arguments: Any) -> Any:
    return runpy.run_path(str(EXAMPLES / name))["main"](*arguments)


def nonzero(model: torch.nn.Module) -> int:
    return sum(int(p.detach().count_nonzero()) for p in model.parameters())


def test_every_example_is_in_the_table_and_of_a_readable_length() -> None:
    table = (EXAMPLES / "README.md").read_text()
    scripts = sorted(p.name for p in EXAMPLES.glob("*.py"))
    assert len(scripts) == 6
    for script in scripts:
        assert f"[{script}]({script})" in table
        assert 40 <= len((EXAMPLES / script).read_text().splitlines()) <= 100


def test_torchvision_resnet(capsys: pytest.CaptureFixture[str]) -> None:
    import catalogue.models  # noqa: F401, defines the operators that torchvision's wheel asks for

    found = run("torchvision_resnet.py")
    result, accuracy = found["result"], found["accuracy"]
    assert type(result.model).__name__ == "ResNet"
    assert 1.25 < result.count.ratio <= 1.3
    assert nonzero(result.model) <= result.count.effective
    assert len(set(result.recipe.alpha.values())) > 1  # a budget gives every space its own
    parents = max(accuracy["model A"], accuracy["model B"])
    assert parents < accuracy["fused"]
    assert parents < accuracy["ensemble"]
    assert f"{accuracy['fused']:.1%}" in capsys.readouterr().out


def test_own_network(capsys: pytest.CaptureFixture[str]) -> None:
    found = run("own_network.py")
    assert {s.name: s.kind for s in found["blueprint"]} == {"stem": "elastic", "conv1": "elastic", "head": "rigid"}
    assert found["gap"] < 1e-4
    ratios = [result.count.ratio for result in found["fused"].values()]
    assert ratios[0] == 1.0
    assert ratios == sorted(set(ratios))
    scores = found["scores"]
    assert scores[0.0] < scores[found["chosen"]]
    assert all(scores[alpha] < scores[1.0] - 0.01 for alpha in scores if alpha < found["chosen"])
    printed = capsys.readouterr().out
    assert "self-check: channels reordered and widened" in printed
    assert f"{found['tested']:.1%} on the test images" in printed


def test_three_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("three_models.py", ["--out", str(tmp_path)])
    frontier, best = found["frontier"], found["best"]
    assert not frontier.failed
    assert frontier.names[-1] == max(found["as_last"], key=found["as_last"].get)
    (ensemble,) = [p for p in frontier.points if p.kind == "ensemble"]
    (whole,) = [p for p in frontier.points if p.kind == "fused" and p.alpha == 1.0]
    assert whole.score == ensemble.score
    sizes = {p.method: p.ratio for p in frontier.points}
    assert sizes["budget 1.4"] <= 1.4
    assert sizes["budget 1.8"] <= 1.8
    assert found["result"].count.effective == best.effective  # the network that was chosen is the one that was tested
    assert found["result"].count.ratio <= 1.8
    with open(tmp_path / "frontier.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows] == [p.score for p in frontier.points]
    page = (tmp_path / "frontier.html").read_text()
    assert "Three specialists" in page
    assert "src=" not in page  # nothing is loaded from elsewhere
    assert frontier.table() in capsys.readouterr().out


def test_prune_one() -> None:
    found = run("prune_one.py")
    results, scores = found["results"], found["scores"]
    assert {method for method, _ in results} == {"cluster", "zip", "magnitude", "magnitude+ot"}
    for (method, refitted), result in results.items():
        assert 0.15 < result.count.ratio <= 0.2
        assert sum(p.numel() for p in result.model.parameters()) == result.count.effective
        assert bool(result.recipe.refit) == refitted
        assert scores[method, True] > scores[method, False]
    assert scores[found["best"]] == max(scores.values())
    assert found["tested"]["pruned"] > 0.9


def test_one_request_is_answered_as_the_model_does(tmp_path: Path) -> None:
    answer, expected = run("serve_onnx.py", ["--once", "--out", str(tmp_path)])
    assert torch.tensor(answer["logits"]) == pytest.approx(expected, abs=1e-4)
    assert answer["digits"] == expected.argmax(1).tolist()


def post(url: str, body: bytes) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(Request(url, body), timeout=30) as reply:
            return reply.status, json.load(reply)
    except HTTPError as error:
        return error.code, json.load(error)


def test_the_server_runs_until_it_is_stopped(tmp_path: Path) -> None:
    """As a process, as a user starts it."""
    source = str(Path(pf.__file__).parents[1])
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # jobs in the background do not
    code = f"{listen}; import runpy; runpy.run_path({str(EXAMPLES / 'serve_onnx.py')!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, "--port", "0", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            said = next((line for line in process.stdout if line.startswith("serving")), None)
            assert said is not None, process.stderr and process.stderr.read()
            url = said.split()[-1]
            images = torch.rand(3, 64, generator=torch.Generator().manual_seed(0))
            code, answer = post(url, json.dumps({"images": images.tolist()}).encode())
            assert code == 200
            session = onnxruntime.InferenceSession(str(tmp_path / "fused.onnx"))
            (logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
            assert torch.tensor(answer["logits"]) == pytest.approx(torch.tensor(logits), abs=1e-5)
            for bad in (b"", b"[]", b'{"images": [[1, 2]]}', b'{"images": [["a"]]}', b'{"images": []}'):
                code, answer = post(url, bad)
                assert code == 400
                assert "64 numbers" in answer["error"]
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
