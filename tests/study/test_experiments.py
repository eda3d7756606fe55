"""Every experiment runs from end to end with quick settings, and its page shows what was measured."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import ot
import pytest
import torch

import partialfusion as pf
from partialfusion.errors import OptionError
from partialfusion_study.cell import key
from partialfusion_study.cells import (
    Compared,
    FineTune,
    Merge,
    Parents,
    Shrunk,
    ShrunkEnsemble,
    Similarity,
    SoftMerge,
)
from partialfusion_study.cells.soft import sinkhorn
from partialfusion_study.executors import executor
from partialfusion_study.experiments import EXPERIMENTS, chosen
from partialfusion_study.experiments.params import bounds
from partialfusion_study.experiments.settings import (
    cifar_vit_pairs,
    mnist_pairs,
    resnet_pairs,
    split_resnet_pairs,
    vgg_pairs,
    vit_pairs,
)
from partialfusion_study.experiments.transformers import KINDS
from partialfusion_study.methods import OURS, PARTIAL_OT
from partialfusion_study.recipes import TrainingConfig
from partialfusion_study.samples import evaluation_images
from partialfusion_study.study import missing, run_study, store_of, write_pages
from partialfusion_study.trained import blueprint, trained
from partialfusion_study.training import accuracy, logits, percent

pytestmark = pytest.mark.usefixtures("small_study")

COMMITTED = store_of(Path(__file__).parents[2] / "docs/results")


OPEN = {"masses", "resnet_widths"}  # the paper names them and makes no claim that these figures could judge
AGAIN = {"resnet_fusion_bad"}  # resnet_fusion with networks that are trained in another way


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in AGAIN])
def test_quick(name: str, tmp_path: Path):
    """One command's work: train, compute, write; and nothing is left to do afterwards."""
    experiment = EXPERIMENTS[name]
    store = store_of(tmp_path)
    with executor(0) as here:
        done = run_study([experiment], "quick", store, here, progress=False)
        again = run_study([experiment], "quick", store, here, progress=False)
    assert done.cells.computed == len(set(experiment.cells("quick")))
    assert done.cells.failed == again.cells.computed == again.trainings.computed == 0
    assert missing(experiment, "quick", store) == 0
    written = write_pages([experiment], "quick", store, tmp_path)
    page = (tmp_path / f"{name}.md").read_text()
    assert all(reference in page for reference in experiment.references)
    assert len(re.findall(r"^\*.*From [\d,]+ runs?\b", page, re.M)) == page.count("\n## ") - 1  # every part says
    assert name in (tmp_path / "README.md").read_text()
    for path in written:
        assert path.stat().st_size > 0
        if path.suffix == ".png":
            assert path.name in page


@pytest.mark.parametrize("scale", ["usual", "full"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_grids_of_every_scale_are_declared(name: str, scale):
    """The large scales are not run here; their cells must be distinct and name all their networks."""
    cells = EXPERIMENTS[name].cells(scale)
    assert cells
    needed = {cell.recipe for cell in EXPERIMENTS[name].trainings(scale)}
    assert {recipe for cell in cells for recipe in getattr(cell, "needs", ())} == needed


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_committed_results_are_found(name: str):
    """Results are found by a hash of class and field names: nothing is computed again because something was renamed."""
    assert missing(EXPERIMENTS[name], "usual", COMMITTED) == 0


@pytest.mark.parametrize("name", [name for name, e in EXPERIMENTS.items() if e.references and name not in OPEN])
def test_verdicts_follow_from_the_results(name: str):
    """Every experiment of the paper judges claims, and no figure of a verdict stays when all results change."""
    experiment = EXPERIMENTS[name]
    verdicts = experiment.claims("usual", COMMITTED.__getitem__)
    assert verdicts
    changed = experiment.claims("usual", lambda cell: _changed(COMMITTED[cell], random.Random(key(cell))))
    assert [v.claim for v in changed] == [v.claim for v in verdicts]
    stay = [a.claim for a, b in zip(verdicts, changed, strict=True) if a == b and a.outcome != "not tested"]
    assert stay == []


def _changed(value: Any, chance: random.Random) -> Any:
    """The same structure with every number changed, each in its own way."""
    if isinstance(value, dict):
        return {name: _changed(part, chance) for name, part in value.items()}
    if isinstance(value, list):
        return [_changed(part, chance) for part in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value * chance.uniform(0.3, 3.0) if is_number else value


def test_the_full_scale_is_the_papers():
    for pair in vgg_pairs("full"):
        assert pair.a.width == 64
        assert (pair.a.training.epochs, pair.a.training.rate, pair.a.training.decay) == (300, 0.5, 5e-4)
        assert pair.a.select
    good, hard = resnet_pairs("full")[0].b.training, resnet_pairs("full", hard=True)[0].b.training
    assert (good.epochs, good.batch, good.decay, good.schedule) == (200, 64, 5e-4, "cosine")
    assert (hard.epochs, hard.batch, hard.decay, hard.schedule) == (300, 256, 1e-4, "cosine")
    assert len(resnet_pairs("full")) == len(mnist_pairs(True, "usual")) == 5
    assert {p.subset.part for pair in split_resnet_pairs("full") for p in (pair.a, pair.b)} == {"even", "odd"}


def test_alpha_one_of_a_merge_is_the_ensemble():
    pair = mnist_pairs(True, "quick")[0]
    parents = Parents(pair, (0.3, 1.0)).run()
    merged = Merge(pair, PARTIAL_OT, 1.0, 0.3).run()
    assert merged["accuracy"] == parents["ensemble"][0]
    assert parents["ensemble"][1] == parents["b"]
    assert merged["channels"] == 2.0
    test = evaluation_images("mnist", None)
    a, b = (logits(trained(m), test.images) for m in (pair.a, pair.b))
    assert parents["ensemble"][0] == percent(0.7 * a + 0.3 * b, test.labels)


def test_merge_is_what_fuse_gives():
    pair = mnist_pairs(True, "quick")[0]
    models = [trained(pair.a), trained(pair.b)]
    result = pf.fuse(models, torch.zeros(1, 1, 28, 28), alpha=0.5, mix=[0.7, 0.3], features="weights")
    found = Merge(pair, PARTIAL_OT, 0.5, 0.3).run()
    assert found["accuracy"] == accuracy(result.model, evaluation_images("mnist", None))
    assert found["parameters"] == result.count.effective


def test_fixed_spaces_stay_apart():
    pair = vgg_pairs("quick")[0]
    free, fixed = (Merge(pair, PARTIAL_OT, 0.0, 0.5, names, 20).run() for names in ((), ("features.3", "features.6")))
    assert free["channels"] == 1.0
    widths = [2, 4, 8, 8, 16, 16, 16, 16]
    assert fixed["channels"] == pytest.approx((sum(widths) + 4 + 8) / sum(widths), abs=1e-6)


def test_outputs_are_compared_with_the_ensembles():
    pair = mnist_pairs(True, "quick")[0]
    whole, part = (Compared(pair, PARTIAL_OT, alpha, 0.3).run() for alpha in (1.0, 0.0))
    assert whole["distance"] < 1e-6
    assert whole["accuracy"] == Parents(pair, (0.3,)).run()["ensemble"][0]
    test = evaluation_images("mnist", None)
    a, b = (logits(trained(m), test.images) for m in (pair.a, pair.b))
    fused = pf.fuse([trained(pair.a), trained(pair.b)], torch.zeros(1, 1, 28, 28), alpha=0.0, mix=[0.7, 0.3])
    ensemble = 0.7 * a + 0.3 * b
    expected = (logits(fused.model, test.images) - ensemble).norm() / ensemble.norm()
    assert part["distance"] == pytest.approx(float(expected))


def test_patterns_keep_spaces_apart():
    pair = vgg_pairs("quick")[0]
    named = Merge(pair, PARTIAL_OT, 0.0, 0.5, ("features.3", "features.6"), 20).run()
    matched = Compared(pair, PARTIAL_OT, 0.0, 0.5, ("features.[36]", "nothing.*"), 20).run()
    assert matched["apart"] == 2
    assert (matched["ratio"], matched["accuracy"]) == (named["ratio"], named["accuracy"])


def test_one_network_within_a_budget_is_what_prune_gives():
    pair, config = mnist_pairs(True, "quick")[0], replace(OURS, images=50)
    found = Shrunk(pair.a, config, 0.75, 100).run()
    assert 0.6 < found["ratio"] <= 0.75
    assert found["effective"] == found["ratio"]  # of one network
    data = config.data("mnist", 0)
    cluster = pf.Cluster("exchange", workers=1)
    result = pf.prune(trained(pair.a), data=data, method=cluster, site="pre", norm="recalibrate", budget=0.75)
    assert found["widths"] == {s.name: [s.before, s.after] for s in result.summary().spaces if s.kind == "elastic"}
    assert found["accuracy"] == accuracy(result.model, evaluation_images("mnist", 100))


def test_an_ensemble_within_a_budget():
    """Below one network's parameters it is smaller than one network; with room for everything it is the ensemble."""
    pair, config = mnist_pairs(True, "quick")[0], replace(OURS, images=50)
    small, whole = (ShrunkEnsemble(pair, config, size, 100).run() for size in (0.75, 4.0))
    assert 0.6 < small["ratio"] <= 0.75
    assert all(after == 2 * before for before, after in whole["widths"].values())
    assert whole["accuracy"] == Parents(pair, (0.5,), 100).run()["ensemble"][0]


def test_a_network_aligned_with_itself_is_itself():
    """One to one; a soft map blurs even this."""
    pair = cifar_vit_pairs("quick")["all images"]
    twin = type(pair)(pair.a, pair.a)
    hard, soft = (SoftMerge(twin, regulariser, 40, 50).run() for regulariser in (0.0, 0.08))
    assert hard["distance"] < 1e-5 < soft["distance"]


def test_soft_couplings_have_uniform_masses():
    cost = np.random.default_rng(0).random((6, 6))
    mass = sinkhorn(cost, 0.08)
    assert np.allclose(mass.sum(0), 1 / 6)
    assert np.allclose(mass.sum(1), 1 / 6)
    expected = ot.sinkhorn(np.full(6, 1 / 6), np.full(6, 1 / 6), cost, 0.08, numItermax=5000, stopThr=1e-12)
    assert np.allclose(mass, expected, atol=1e-8)


def test_every_space_of_a_transformer_is_of_one_kind():
    spaces = [space.name for space in blueprint(vit_pairs("quick")[0].b) if space.kind != "rigid"]
    kinds = [[kind for kind, patterns in KINDS.items() if any(fnmatchcase(s, p) for p in patterns)] for s in spaces]
    assert all(len(found) == 1 for found in kinds)
    assert {kind for found in kinds for kind in found} == set(KINDS)


def test_nothing_trained_on_measures_the_same():
    """No epochs: before and after agree, and widening by copies keeps the function."""
    pair = mnist_pairs(True, "quick")[0]
    training = TrainingConfig(0, 0, 64, True, 1e-3, "constant", 0.0, False)
    fused = FineTune(pair, "fusion", 1.0, 0.5, PARTIAL_OT, 100, training, 0).run()
    copies = FineTune(pair, "net2net", 0.5, 0.5, PARTIAL_OT, 100, training, 0, noise=0.0).run()
    assert fused["before"] == fused["after"] == Parents(pair, (0.5,)).run()["ensemble"][0]
    assert copies["before"] == copies["after"] == Parents(pair, (0.5,)).run()["a"]


def test_distances_of_a_network_to_itself():
    pair = mnist_pairs(False, "quick")[0]
    twin = type(pair)(pair.a, pair.a)
    layer = Similarity(twin, 100, "pre").run()["layers"][0]
    scale = fmean(layer["mean_a_to_b"])
    assert max(layer["nearest_a_to_b"]) < 4 * torch.finfo(torch.float32).eps ** 0.5 * scale  # a root of a difference
    assert layer["nearest_within_a"] == layer["nearest_within_b"]
    assert min(layer["nearest_within_a"]) > 0


def test_distances_are_those_of_activation_vectors():
    pair = mnist_pairs(False, "quick")[0]
    layer = Similarity(pair, 100, "pre").run()["layers"][0]
    from partialfusion_study.methods import batches

    x = torch.cat(list(batches("mnist", 0, 100))).flatten(1)
    a, b = (x @ trained(m)[1].weight.T for m in (pair.a, pair.b))
    expected = torch.cdist(a.T.double(), b.T.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.tensor(layer["nearest_a_to_b"]).double().allclose(expected.amin(1), atol=1e-3)
    assert torch.tensor(layer["mean_b_to_a"]).double().allclose(expected.mean(0), atol=1e-3)


def test_bounds_are_the_papers_example():
    assert bounds("pruning", 0.5) == (1.125, 1.25)
    assert bounds("clustering", 0.5) == (1.125, 1.75)
    assert bounds("partial fusion", 0.5) == (1.75, 1.75)


def test_unknown_names_are_refused():
    with pytest.raises(OptionError, match="no experiment 'split'.*split_data"):
        chosen(["split"])
    assert len(chosen([])) == len(EXPERIMENTS) == 37
