"""Pairs aligned as in Transformer Fusion with Optimal Transport: softly, and across heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.solvers import assignment

from ..internals import Coupling, Inputs, apply, merge
from ..methods import batches
from ..recipes import Pair, Recipe
from ..samples import evaluation_images
from ..trained import blueprint, example, trained
from ..training import device, logits, percent
from .pairs import parent_logits

ITERATIONS = 2000  # of Sinkhorn's algorithm, at most
ENOUGH = 1e-9  # largest error of the masses


@dataclass(frozen=True)
class SoftMerge:
    """Fuse all channels of a pair of transformers by optimal transport, and compare the outputs with the ensemble's.

    The rules are those of Imfeld et al. (ICLR 2024), on the spaces of the library: a channel of A is spread over the
    channels of B by Sinkhorn's algorithm, or goes to one of them; channels of heads may go to any head. The cost is the
    Euclidean distance of standardised activations, relative to the largest.

    Attributes:
        pair: the networks.
        regulariser: the strength of Sinkhorn's entropy; 0 is a matching one to one.
        images: the number of unlabelled training images.
        tested: the number of test images; None for all.
        seed: random seed of the images.
    """

    pair: Pair
    regulariser: float
    images: int
    tested: int | None = None
    seed: int = 0

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        test = evaluation_images(self.pair.data, self.tested)
        found = logits(self.fused(), test.images)
        ensemble = (parent_logits(self.pair.a, self.tested) + parent_logits(self.pair.b, self.tested)) / 2
        return {
            "accuracy": percent(found, test.labels),
            "distance": float((found - ensemble).norm() / ensemble.norm()),
        }

    def fused(self) -> nn.Module:
        models = [trained(self.pair.a), trained(self.pair.b)]
        known = blueprint(self.pair.b)
        spaces = [s for s in known if s.kind != "rigid"]
        seen = _Correlations(models, spaces)
        for x in batches(self.pair.data, self.seed, self.images):
            seen.add(x.to(device()))
        couplings = {s.name: self._coupling(seen.of(s.name)) for s in spaces}
        reductions = {s.name: merge([couplings.get(s.name) or Coupling.identity(s.width)], (0.5, 0.5)) for s in known}
        made = apply(models, [known, known], pf.Plan(reductions, (0.5, 0.5)), Inputs.of(example(self.pair.b)))
        return made.model.eval()

    def _coupling(self, correlation: np.ndarray) -> Coupling:
        distance = np.sqrt(np.maximum(2 - 2 * correlation, 0))
        n = len(distance)
        if not self.regulariser:
            rows, cols = assignment(distance)
            return Coupling.of_pairs(rows, cols, np.ones(n, bool))
        mass = sinkhorn(distance / distance.max(), self.regulariser)
        rows, cols = (index.ravel() for index in np.indices(mass.shape))
        return Coupling(rows, cols, mass.ravel(), np.ones(n * n, bool), mass.sum(1), mass.sum(0))


def sinkhorn(cost: np.ndarray, regulariser: float) -> np.ndarray:
    """(n × m) the coupling of uniform masses that is cheapest with an entropy of this strength, in logarithms."""
    n, m = cost.shape
    scores = torch.from_numpy(-cost / regulariser)
    left, right = torch.zeros(n, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
    for _ in range(ITERATIONS):
        left = -np.log(n) - torch.logsumexp(scores + right, 1)
        right = -np.log(m) - torch.logsumexp(scores + left[:, None], 0)
        mass = (scores + left[:, None] + right).exp()
        if float((mass.sum(1) - 1 / n).abs().max()) < ENOUGH:
            break
    return mass.numpy()


class _Correlations:
    """Streamed correlations of the channels of two transformers: of what layers compute for a space, and where norms
    run across it of what these read."""

    def __init__(self, models: Sequence[nn.Module], spaces: Sequence[pf.Space]) -> None:
        self.models = models
        self.places = {s.name: _places(s) for s in spaces}
        self.sums: dict[tuple[str, str], list[Tensor]] = {}

    def add(self, x: Tensor) -> None:
        ours, theirs = (self._seen(model, x) for model in self.models)
        for place, a in ours.items():
            b = theirs[place]
            found = [torch.tensor(float(a.shape[1])), a.sum(1), b.sum(1), (a * a).sum(1), (b * b).sum(1), a @ b.T]
            known = self.sums.setdefault(place, [torch.zeros_like(t) for t in found])
            for total, part in zip(known, found, strict=True):
                total += part

    def of(self, space: str) -> np.ndarray:
        """(n × m) averaged over the places where the space is seen."""
        return np.mean([_correlation(*t) for (name, _), t in self.sums.items() if name == space], axis=0)

    @torch.no_grad()
    def _seen(self, model: nn.Module, x: Tensor) -> dict[tuple[str, str], Tensor]:
        """Place → (channels × samples) in double precision."""
        found: dict[tuple[str, str], Tensor] = {}
        hooks = []
        for space, places in self.places.items():
            for path, index, before in places:

                def keep(
                    _: nn.Module,
                    inputs: tuple[Tensor, ...],
                    output: Tensor,
                    key: tuple[str, str] = (space, path),
                    index: Tensor = index,
                    before: bool = before,
                ) -> None:
                    seen = inputs[0] if before else output
                    found[key] = seen.flatten(0, -2).T[index].double().cpu()

                hooks.append(model.get_submodule(path).register_forward_hook(keep))
        try:
            model(x)
        finally:
            for hook in hooks:
                hook.remove()
        return found


def _places(space: pf.Space) -> list[tuple[str, Tensor, bool]]:
    """Module, positions of the channels, and whether to look at what it reads instead of what it computes."""
    if space.norms:
        return [(n.path, torch.from_numpy(n.index[:, 0]), True) for n in space.norms]
    written = [b for b in space.bindings if b.role == "writes" and b.parameter.endswith(".weight")]
    return [(b.parameter.removesuffix(".weight"), torch.from_numpy(b.index[:, 0]), False) for b in written]


def _correlation(
    count: Tensor, a: Tensor, b: Tensor, squares_a: Tensor, squares_b: Tensor, products: Tensor
) -> np.ndarray:
    spread = [(s / count - (m / count) ** 2).clamp_min(1e-12).sqrt() for s, m in ((squares_a, a), (squares_b, b))]
    covariance = products / count - torch.outer(a / count, b / count)
    return np.asarray((covariance / torch.outer(*spread)).clamp(-1, 1).numpy())
