"""The demo: two specialists on digits, and what must hold between the rows of its table."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import partialfusion as pf
from partialfusion import cli
from partialfusion import demo as digits
from partialfusion.cli.demo import next_steps
from partialfusion.core import progress
from partialfusion.errors import DataError, OptionError
from partialfusion.io.checkpoints import load_model

pytest.importorskip("sklearn")

NET = "partialfusion.demo:DigitsNet"


@pytest.fixture(scope="module")
def pair() -> digits.Specialists:
    return digits.specialists(0)


@pytest.fixture(scope="module")
def study(pair: digits.Specialists) -> digits.Study:
    return digits.study(pair, details=True)


def test_every_point_is_reported(study: digits.Study) -> None:
    found = [(p.method, p.alpha, p.mix) for p in study.points]
    mixes = [(share, 1 - share) for share in digits.SHARES]
    assert found == [
        ("model A", None, (1.0, 0.0)),
        ("model B", None, (0.0, 1.0)),
        *(("average", 0.0, mix) for mix in mixes),
        *(("partial-ot", alpha, mix) for alpha in digits.ALPHAS for mix in mixes),
        *(("interpolate", alpha, mix) for alpha in digits.ALPHAS for mix in mixes),
        *(("ensemble", None, mix) for mix in mixes),
    ]


def test_alpha_one_is_the_ensemble(study: digits.Study, pair: digits.Specialists) -> None:
    """The ensemble of the table is the mean of the parents' logits, computed here without the library."""
    with torch.no_grad():
        a, b = (model(pair.test.images) for model in (pair.a, pair.b))
    for share in digits.SHARES:
        fused = study.find("partial-ot", alpha=1.0, share=share)
        ensemble = study.find("ensemble", share=share)
        hits = (share * a + (1 - share) * b).argmax(1) == pair.test.digits
        assert fused.accuracy == ensemble.accuracy == int(hits.sum()) / len(pair.test)
        assert fused.effective == ensemble.effective - digits.CLASSES  # the output bias is one


def test_size_grows_with_alpha(study: digits.Study) -> None:
    for share in digits.SHARES:
        ratios = [study.find("partial-ot", alpha=alpha, share=share).effective_ratio for alpha in digits.ALPHAS]
        assert ratios[0] == 1.0
        assert ratios == sorted(set(ratios))
        assert ratios[-1] == pytest.approx(2.0, abs=1e-3)


def test_what_the_demo_shows(study: digits.Study) -> None:
    """Both parents know most digits, alignment is worth much, and the ensemble beats both parents."""
    a, b = study.find("model A"), study.find("model B")
    ensemble = study.find("ensemble", share=0.5)
    assert min(a.accuracy, b.accuracy) > 0.75
    assert ensemble.accuracy > max(a.accuracy, b.accuracy)
    assert study.find("partial-ot", alpha=0.0, share=0.5).accuracy > study.find("average", share=0.5).accuracy + 0.1
    fitted = study.find("interpolate", alpha=0.0, share=0.5)
    assert fitted.ratio == 1
    assert fitted.accuracy > max(a.accuracy, b.accuracy), "one network of their size is better than either"


def test_parents_and_fused_networks_are_measured_alone(study: digits.Study, pair: digits.Specialists) -> None:
    """Points of the one frontier equal networks that are fused and tested one at a time."""
    for method, model in (("model A", pair.a), ("model B", pair.b)):
        assert study.find(method).accuracy == digits.tested(model)
    models, x = [pair.a, pair.b], pair.data_b.images[:2]
    for method, alpha, share in (("average", 0.0, 0.3), ("partial-ot", 0.0, 0.7), ("partial-ot", 0.5, 0.5)):
        result = pf.fuse(models, x, alpha=alpha, mix=[share, 1 - share], method=method)
        point = study.find(method, alpha=alpha, share=share)
        assert point.accuracy == digits.tested(result.model)
        assert (point.effective, point.effective_ratio) == (result.count.effective, result.count.effective_ratio)
        assert (point.dense, point.ratio) == (result.count.dense, result.count.ratio)
    fitted = pf.fuse(models, x, alpha=0.25, mix=0.3, method="interpolate", refit=True, data=digits.unlabelled(pair))
    assert study.find("interpolate", alpha=0.25, share=0.3).accuracy == digits.tested(fitted.model)


def test_split(pair: digits.Specialists) -> None:
    training, test = digits.load()
    fours = int((training.digits == pair.digit).sum())
    others = len(training) - fours
    assert int((pair.data_a.digits == pair.digit).sum()) == fours
    assert len(pair.data_a) == fours + others // 10
    assert not (pair.data_b.digits == pair.digit).any()
    assert len(pair.data_b) == others - others // 10
    assert set(test.digits.tolist()) == set(range(10))
    assert len(training) + len(test) == 1797
    assert torch.equal(test.images, pair.test.images)
    assert 0 <= training.images.min() < training.images.max() == 1


def test_same_seed_same_table_and_global_state_stays() -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first = digits.study(digits.specialists(1, steps=60), alphas=(0.0, 0.5), shares=(0.5,))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(6)
    assert digits.study(digits.specialists(1, steps=60), alphas=(0.0, 0.5), shares=(0.5,)) == first
    assert digits.study(digits.specialists(2, steps=60), alphas=(0.0, 0.5), shares=(0.5,)) != first


def test_command(
    study: digits.Study, pair: digits.Specialists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "EVERY", float("inf"))  # a slow machine would say how far it has come
    result = CliRunner().invoke(cli.app, ["demo", "--json", "--save", "kept"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == json.loads(json.dumps(study.record()))
    assert np.array_equal(np.load("kept/images.npy"), torch.cat(digits.unlabelled(pair)).numpy())
    for model, name in ((pair.a, "a"), (pair.b, "b")):
        kept = load_model(NET, f"kept/{name}.safetensors").state_dict()
        assert all(torch.equal(kept[n], t) for n, t in model.state_dict().items())


def test_text_and_next_steps(
    study: digits.Study, pair: digits.Specialists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table fits a terminal, and every line it proposes works as it stands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(digits, "specialists", lambda *args, **options: pair)
    monkeypatch.setattr(digits, "study", lambda *args, **options: study)
    runner = CliRunner()
    text = runner.invoke(cli.app, ["demo"], env={"COLUMNS": "80"}).stdout
    proposed = text.index("Try next")
    assert max(len(line) for line in text[:proposed].splitlines()) <= 80
    assert "…" not in text
    for point in study.points:
        assert f"{point.accuracy:.1%}" in text
        assert f"{point.ratio:.2f}×" in text
        assert f"{point.effective_ratio:.2f}×" in text
    lines = [line.strip() for line in text.split("Try next")[1].replace("\\\n", "").splitlines() if line.strip()]
    commands = [line.split() for line in lines if line.startswith("partialfusion ")]
    assert [c[1] for c in commands] == ["trace", "demo", "fuse"]
    for command in commands:
        result = runner.invoke(cli.app, command[1:])
        assert (result.exit_code, result.stderr) == (0, "")
    assert Path("digits/fused.safetensors").exists()
    exec("\n".join(line for line in lines if not line.startswith("partialfusion ")), scope := {})
    assert isinstance(scope["result"], pf.Fusion)
    assert scope["result"].model(pair.test.images).shape == (len(pair.test), 10)


def test_next_steps_after_saving_in_a_folder_with_a_space() -> None:
    text = "\n".join(next_steps(Path("my digits"))).replace("\\\n", "")
    (fuse,) = [shlex.split(line) for line in text.splitlines() if line.startswith("partialfusion fuse")]
    assert fuse[3:5] == ["my digits/a.safetensors", "my digits/b.safetensors"]
    assert fuse[-1] == "my digits/fused.safetensors"
    assert fuse[fuse.index("--data") + 1] == "my digits/images.npy"


def test_everything_is_fused_once(pair: digits.Specialists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table and the page come from one frontier."""
    runs = []

    def counted(*args: Any, **options: Any) -> pf.Frontier:
        runs.append(options)
        return pf.frontier(*args, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(digits, "specialists", lambda *args, **options: pair)
    monkeypatch.setattr(digits, "frontier", counted)
    result = CliRunner().invoke(cli.app, ["demo", "--json"])
    assert (result.exit_code, len(runs)) == (0, 1)
    page = Path("partialfusion-demo.html").read_text()
    assert page.count("data-point=") == len(json.loads(result.stdout)["points"])


def test_a_network_that_fails_is_an_error(pair: digits.Specialists, monkeypatch: pytest.MonkeyPatch) -> None:
    def partly_failed(*args: Any, **options: Any) -> pf.Frontier:
        found = pf.frontier(*args, **options)
        return replace(found, points=(*found.points[:-1], replace(found.points[-1], score=None, error="no luck")))

    monkeypatch.setattr(digits, "frontier", partly_failed)
    with pytest.raises(pf.FusionError, match="interpolate at alpha 0.5 could not be measured: no luck"):
        digits.study(pair, alphas=(0.5,), shares=(0.5,))


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'partialfusion\[demo\]'"):
        digits.load()
    result = CliRunner().invoke(cli.app, ["demo"])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


def test_bad_options(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="digit=10"):
        digits.specialists(digit=10)
    (tmp_path / "file").write_text("x")
    result = CliRunner().invoke(cli.app, ["demo", "--save", str(tmp_path / "file")])
    assert result.exit_code == 1
    assert "choose another" in result.stderr
