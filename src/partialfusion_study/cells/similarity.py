"""Distances between channels, within a network and across two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.literals import Site

from ..methods import batches
from ..recipes import Pair, Recipe
from ..trained import blueprint, trained
from ..training import device


@dataclass(frozen=True)
class Similarity:
    """For every channel, the distance of its activation vector to the nearest one and the mean distance to all.

    The vector of a neuron has one entry per image. The vector of a convolution's channel has one per image and
    position; its distances are divided by the square root of the number of positions.

    Attributes:
        pair: the networks.
        images: the number of training images.
        site: where activations are taken: "pre" or "post" the activation function.
        seed: random seed of the images.
    """

    pair: Pair
    images: int
    site: Site
    seed: int = 0

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        models = [trained(self.pair.a), trained(self.pair.b)]
        spaces = [space for space in blueprint(self.pair.b) if space.kind == "elastic"]
        products: dict[str, Tensor] = {}
        for x in batches(self.pair.data, self.seed, self.images):
            seen = [activations(model, x.to(device()), spaces, self.site) for model in models]
            for space in spaces:
                union = torch.cat([found[space.name] for found in seen])
                product = (union @ union.T).cpu()
                products[space.name] = products.get(space.name, torch.zeros_like(product)) + product
        return {
            "layers": [{"name": s.name, "width": s.width} | _distances(products[s.name]) for s in spaces],
        }


@torch.no_grad()
def activations(model: nn.Module, x: Tensor, spaces: Sequence[pf.Space], site: Site) -> dict[str, Tensor]:
    """Space → float64 (channels × images and positions), divided by the root of the number of positions.

    The activations after the activation function are those that the next layer reads.
    """
    found: dict[str, Tensor] = {}

    def watch(space: pf.Space) -> torch.utils.hooks.RemovableHandle:
        role = "reads" if site == "post" else "writes"
        parameter = next(b.parameter for b in space.bindings if b.role == role)

        def record(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            seen = (inputs[0] if site == "post" else output).double().reshape(len(x), space.width, -1)
            found[space.name] = seen.movedim(1, 0).flatten(1) / seen.shape[2] ** 0.5

        return model.get_submodule(parameter.rpartition(".")[0]).register_forward_hook(record)

    hooks = [watch(space) for space in spaces]
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _distances(products: Tensor) -> dict[str, list[float]]:
    """(2n × 2n) inner products of A's and B's channels → the distances of every channel."""
    squares = products.diagonal()
    distance = (squares[:, None] + squares[None, :] - 2 * products).clamp_min(0).sqrt()
    n = len(distance) // 2
    blocks = {
        "within_a": distance[:n, :n],
        "within_b": distance[n:, n:],
        "a_to_b": distance[:n, n:],
        "b_to_a": distance[n:, :n],
    }
    found = {}
    for name, block in blocks.items():
        own = torch.eye(n, dtype=torch.bool) if name.startswith("within") else torch.zeros(n, n, dtype=torch.bool)
        found[f"nearest_{name}"] = _rounded(block.masked_fill(own, torch.inf).amin(1))
        found[f"mean_{name}"] = _rounded(block.masked_fill(own, 0.0).sum(1) / (~own).sum(1))
    return found


def _rounded(values: Tensor) -> list[float]:
    return [round(v, 4) for v in values.tolist()]
