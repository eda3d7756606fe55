"""Recipes: equal ones make equal networks, parts of the data go together, checkpoints are what was trained."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from partialfusion_study import samples
from partialfusion_study import trained as store
from partialfusion_study.cell import key
from partialfusion_study.data import DataSet, Images, load
from partialfusion_study.experiments.settings import resnet_pairs, split_resnet_pairs, vgg_pairs, vit_pairs
from partialfusion_study.recipes import Recipe, Subset, TrainingConfig, mlp_recipe, short_recipe, vit_recipe
from partialfusion_study.resuming import Resumable
from partialfusion_study.samples import DIGIT, HELD_OUT, evaluation_images, part, sample
from partialfusion_study.trained import checkpoint, trained
from partialfusion_study.training import accuracy, augmented, build, fit, train

pytestmark = pytest.mark.usefixtures("small_study")

TINY = Recipe("mlp", 8, Subset("mnist"), 0, TrainingConfig(0, 12, 32, True, 3e-3, "constant", 0.0, False))


def rows(images):
    return {image.numpy().tobytes() for image in images.images}


def test_specialist_and_generalist_share_out_the_images():
    a, b = (part(Subset("mnist", p, 3)) for p in ("specialist", "generalist"))
    train_set = load("mnist").train
    assert len(a) + len(b) == len(train_set)
    assert rows(a) | rows(b) == rows(train_set)
    assert not rows(a) & rows(b)
    assert (a.labels == DIGIT).sum() == (train_set.labels == DIGIT).sum()
    assert not (b.labels == DIGIT).any()
    others = (train_set.labels != DIGIT).sum()
    assert 0.05 < ((a.labels != DIGIT).sum() / others) < 0.15
    assert rows(part(Subset("mnist", "specialist", 4))) != rows(a)


@pytest.mark.parametrize("which", ["all", "even", "odd"])
def test_held_out_images_of_cifar_are_in_no_training(which):
    held = rows(sample("cifar10", 0, 10 * HELD_OUT))
    assert len(held) == 10 * HELD_OUT
    assert not held & rows(part(Subset("cifar10", which)))
    assert rows(sample("cifar10", 7, 100)) <= held


def test_parts_of_the_published_cifar(monkeypatch):
    """5,000 images of each class: 250 are held out, and the two models' parts share out the rest."""
    number = torch.arange(50_000)
    pixels = torch.stack([number // 256, number % 256], 1).to(torch.uint8)[:, :, None, None]
    train_set = Images(pixels, number % 10)
    monkeypatch.setattr(samples, "load", lambda name: DataSet(name, train_set, train_set))
    held = rows(sample("cifar10", 0, 2500))
    everything, even, odd = (part(Subset("cifar10", p)) for p in ("all", "even", "odd"))
    assert len(held) == 2500
    assert torch.equal(even.labels.bincount(), torch.tensor([4600, 150] * 5))
    assert torch.equal(odd.labels.bincount(), torch.tensor([150, 4600] * 5))
    assert not rows(even) & rows(odd)
    assert rows(even) | rows(odd) == rows(everything) == rows(train_set) - held


def test_samples_have_as_many_of_each_class_and_depend_on_the_seed():
    few = sample("mnist", 0, 100)
    assert torch.equal(few.labels.bincount(), torch.full((10,), 10))
    assert rows(few) != rows(sample("mnist", 1, 100))
    assert len(evaluation_images("mnist", 50)) == 50
    assert len(evaluation_images("mnist", None)) == len(load("mnist").test)


def test_equal_recipes_make_equal_networks_and_leave_the_global_seed_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = train(TINY, part(TINY.subset))
    assert torch.equal(torch.rand(3), expected)
    two = train(TINY, part(TINY.subset))
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q)
    other = train(replace(TINY, start=1), part(TINY.subset))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_training_learns():
    assert accuracy(train(TINY, part(TINY.subset)), evaluation_images("mnist", None)) > 80


def test_transformers_learn():
    recipe = vit_recipe(0, width=8, epochs=3)
    recipe = replace(recipe, training=replace(recipe.training, batch=32, rate=1e-2))
    assert accuracy(train(recipe, part(recipe.subset)), evaluation_images("mnist", None)) > 80


@pytest.mark.parametrize("schedule", ["constant", "one-cycle", "cosine", "halving"])
def test_every_schedule_runs(schedule):
    model = build(TINY)
    before = next(model.parameters()).clone()
    losses = []
    training = TrainingConfig(0, 2, 64, rate=0.01, schedule=schedule, augment=False)
    fit(model, sample("mnist", 0, 200), training, after_epoch=lambda epoch, loss: losses.append((epoch, loss)))
    assert [epoch for epoch, _ in losses] == [0, 1]
    assert not torch.equal(before, next(model.parameters()))
    assert not model.training


def test_training_continues_after_the_last_whole_epoch(monkeypatch, tmp_path):
    """The order, the augmentation, the schedule and the optimiser go on as if nothing had happened."""
    monkeypatch.setattr("partialfusion_study.resuming.INTERVAL", 0.0)
    recipe = Recipe("mlp", 8, Subset("mnist", limit=100), 0, TrainingConfig(0, 3, 32, True, 1e-3, "one-cycle"))
    images, state = part(recipe.subset), Resumable(tmp_path / "state")

    def stop(epoch, loss):
        if epoch == 2:
            raise KeyboardInterrupt

    whole, stopped = build(recipe), build(recipe)
    fit(whole, images, recipe.training)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, images, recipe.training, after_epoch=stop, resumable=state)
    epochs: list[int] = []
    continued = build(recipe)
    fit(continued, images, recipe.training, after_epoch=lambda epoch, loss: epochs.append(epoch), resumable=state)
    assert epochs == [2]
    for p, q in zip(whole.parameters(), continued.parameters(), strict=True):
        assert torch.equal(p, q)


def test_an_epoch_is_chosen_on_held_out_images(monkeypatch):
    from partialfusion_study import training

    found = iter([10.0, 90.0, 50.0])
    kept = []

    def judged(model, images):
        assert rows(images) <= rows(load("mnist").train)
        kept.append([p.clone() for p in model.parameters()])
        return next(found)

    monkeypatch.setattr(training, "accuracy", judged)
    recipe = replace(TINY, training=replace(TINY.training, epochs=3), select=True)
    model = train(recipe, part(TINY.subset))
    for p, q in zip(model.parameters(), kept[1], strict=True):
        assert torch.equal(p, q)


def test_augmented_images_are_shifts_and_flips():
    x = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).view(2, 3, 8, 8) + 1
    found = augmented(x.repeat(50, 1, 1, 1), torch.Generator().manual_seed(0))
    padded = F.pad(x, (4, 4, 4, 4))
    allowed = {
        y.numpy().tobytes()
        for image in (padded, padded.flip(-1))
        for k in range(2)
        for r in range(9)
        for c in range(9)
        for y in [image[k, :, r : r + 8, c : c + 8].contiguous()]
    }
    assert {y.numpy().tobytes() for y in found.contiguous()} <= allowed
    assert len({y.numpy().tobytes() for y in found.contiguous()}) > 50


def test_checkpoints_are_trained_once_and_kept_in_half_precision(monkeypatch):
    recipe = replace(TINY, start=77)
    path = checkpoint(recipe)
    monkeypatch.setattr(store, "train", None)  # a second training would fail
    assert checkpoint(recipe) == path
    model = trained(recipe)
    for p in model.parameters():
        assert p.dtype == torch.float32
        assert torch.equal(p, p.half().float())
    assert trained(recipe) is model


def test_the_zoo_comes_before_the_cache(monkeypatch, tmp_path):
    recipe = replace(TINY, start=78)
    path = checkpoint(recipe)
    (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(store, "ZOO", tmp_path)
    assert checkpoint(recipe) == tmp_path / path.name


@pytest.mark.parametrize(
    "pairs", [vgg_pairs, resnet_pairs, partial(resnet_pairs, hard=True), split_resnet_pairs, vit_pairs]
)
def test_the_zoo_holds_the_networks_of_the_committed_results(pairs):
    for pair in pairs("usual"):
        assert {checkpoint(recipe).parent for recipe in (pair.a, pair.b)} == {Path(__file__).parents[2] / "zoo"}


def test_whatever_matters_is_in_the_key():
    recipe = short_recipe("resnet18", start=0, order=0, epochs=12)
    changed = [
        replace(recipe, width=8),
        replace(recipe, start=1),
        replace(recipe, subset=replace(recipe.subset, part="even")),
        replace(recipe, training=replace(recipe.training, order=1)),
        replace(recipe, training=replace(recipe.training, decay=1e-4)),
        mlp_recipe("all", 0, model=0),
        vit_recipe(0),
        vit_recipe(1),
    ]
    assert len({key(r) for r in [recipe, *changed]}) == len(changed) + 1
