"""What depends on the order of the models, with the shares in the same order, and what does not."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import ZOO

TOLERANCE = 1e-5
MIX = (0.2, 0.3, 0.5)
# Clustering that searches at random sees the channels in another order; greedy Ward does not search.
EVERY = ("average", "permutation", "ot", "partial-ot", "zip", pf.Cluster("ward"), "magnitude", "magnitude+ot")
ANY_ORDER = ("average", "magnitude")
ANY_ORDER_WITH_DATA = ("average", "zip", "magnitude", "magnitude+ot")


def outputs(models: list[nn.Module], x: Tensor, order: tuple[int, ...], mix: Any, **options: Any) -> dict[Any, Tensor]:
    """(method, alpha) → the output of that network, as a frontier of the models in this order measures it."""
    seen: list[Tensor] = []

    def evaluate(model: nn.Module) -> float:
        seen.append(model(x).detach().clone())
        return 0.0

    shares = tuple(mix[k] for k in order)
    found = pf.frontier(
        [models[k] for k in order], x, evaluate=evaluate, mixes=[shares], progress=False, details=False, **options
    )
    assert not found.failed
    named = [(models_of(p, order), p.alpha, p.parameters) for p in found.points]
    return dict(zip(named, seen, strict=True))


def models_of(point: pf.Point, order: tuple[int, ...]) -> str:
    """A parent by its number in the first order."""
    return f"parent {order[point.mix.index(1.0)]}" if point.kind == "parent" else point.method


def same(first: dict[Any, Tensor], second: dict[Any, Tensor]) -> bool:
    """The same networks of the same sizes with the same outputs."""
    return first.keys() == second.keys() and all(
        float((second[name] - y).abs().max()) < TOLERANCE * float(y.abs().max()) for name, y in first.items()
    )


# With data, "vgg-bn" has ties: channels that never fire.
@pytest.mark.parametrize(("name", "data"), [("mlp", False), ("mlp", True), ("vgg-bn", False)])
def test_two_models_of_equal_widths_have_no_order(name: str, data: bool) -> None:
    exhibit = ZOO[name]
    models, x = [exhibit.model(seed) for seed in (0, 1)], exhibit.inputs()
    options: dict[str, Any] = {"data": [exhibit.inputs(seed) for seed in range(1, 5)]} if data else {}
    options["blueprint"] = pf.trace(models[0], x)
    for method in EVERY:
        found = [
            outputs(models, x, order, (0.3, 0.7), methods=[method], alphas=(0, 0.4, 1), **options)
            for order in ((0, 1), (1, 0))
        ]
        assert same(*found), method


@pytest.mark.parametrize("data", [False, True])
def test_of_three_models_only_the_last_matters(models: list[nn.Module], x: Tensor, data: bool) -> None:
    options: dict[str, Any] = {"data": [ZOO["mlp"].inputs(seed) for seed in range(1, 5)]} if data else {}
    options["blueprint"] = pf.trace(models[0], x)
    free = ANY_ORDER_WITH_DATA if data else ANY_ORDER
    for method in EVERY:
        found = {
            order: outputs(models, x, order, MIX, methods=[method], alphas=(0.4,), **options)
            for order in permutations(range(3))
        }
        for one, other in (((0, 1, 2), (1, 0, 2)), ((0, 2, 1), (2, 0, 1)), ((1, 2, 0), (2, 1, 0))):
            assert same(found[one], found[other]), (method, one)
        if method in free:
            assert all(same(found[0, 1, 2], other) for other in found.values()), method
        else:
            assert not same(found[0, 1, 2], found[0, 2, 1]), f"{method} does not depend on which model is last"


def test_the_ends_never_depend_on_the_order(models: list[nn.Module], x: Tensor) -> None:
    """Parents, ensemble and alpha=1."""
    found = [outputs(models, x, order, MIX, alphas=(1,)) for order in permutations(range(3))]
    assert all(same(found[0], other) for other in found)
    mixed = sum(share * model(x) for share, model in zip(MIX, models, strict=True))
    assert isinstance(mixed, Tensor)
    whole = [y for (method, alpha, _), y in found[0].items() if method in ("ensemble", "partial-ot")]
    assert len(whole) == 2
    assert all(torch.allclose(y, mixed, atol=1e-5) for y in whole)


def test_unequal_widths_take_the_last_models_world() -> None:
    exhibit = ZOO["mlp"]
    models = [exhibit.model(seed, width) for seed, width in enumerate(exhibit.widths)]
    x = exhibit.inputs()
    smallest = []
    for order in ((0, 1), (1, 0)):
        found = pf.frontier(
            [models[k] for k in order], x, evaluate=lambda m: 0.0, alphas=(0, 1), progress=False, details=False
        )
        *_, least, whole = found.points
        last = sum(p.numel() for p in models[order[-1]].parameters())
        assert (least.parameters, least.ratio) == (last, 1.0)
        smallest.append(whole.parameters)
    assert smallest[0] == smallest[1]
