"""Two networks merged in some way, and their ensemble to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import partialfusion as pf
from partialfusion.core.literals import Alpha

from ..recipes import Pair, Training
from ..samples import unseen
from ..trained import blueprint, example, trained
from ..training import accuracy, logits, percent
from ..ways import Way


@dataclass(frozen=True)
class Merge:
    """Merge a pair and measure the result on the test images.

    Attributes:
        pair: the networks.
        way: how they are merged.
        alpha: channels beyond one model's, 0 to 1.
        share: of model B, the paper's interpolation factor.
        fixed: spaces that stay apart whatever alpha is.
        tested: only so many test images.
        seed: of the images that serve as data, and of searches.
    """

    pair: Pair
    way: Way
    alpha: float
    share: float
    fixed: tuple[str, ...] = ()
    tested: int | None = None
    seed: int = 0

    @property
    def needs(self) -> tuple[Training, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        result = merged(self.pair, self.way, self.alpha, self.share, fixed=self.fixed, seed=self.seed)
        spaces = [s for s in result.summary().spaces if s.kind == "elastic"]
        return {
            "accuracy": accuracy(result.model, unseen(self.pair.data, self.tested)),
            "parameters": result.count.effective,
            "ratio": round(result.count.ratio, 6),
            "channels": round(sum(s.after for s in spaces) / sum(s.before for s in spaces), 6),
            "sweeps": result.plan.sweeps,
        }


def merged(
    pair: Pair, way: Way, alpha: float, share: float, *, fixed: tuple[str, ...] = (), seed: int = 0
) -> pf.Fusion:
    """The fusion of a pair."""
    sizes: Alpha | None = {**dict.fromkeys(fixed, 1.0), "*": alpha} if fixed else alpha
    return fused(pair, way, seed, alpha=sizes, mix=(1.0 - share, share))


def fused(pair: Pair, way: Way, seed: int, **options: Any) -> pf.Fusion:
    """A pair fused in some way; the size, the mix and what else there is are options of `fuse`."""
    result = pf.fuse(
        [trained(pair.a), trained(pair.b)],
        example(pair.b),
        align=way.align,
        blueprint=blueprint(pair.b),
        seed=seed,
        **way.options(pair.data, seed),
        **options,
    )
    return uninterrupted(result, way)


def uninterrupted(result: pf.Fusion, way: Way) -> pf.Fusion:
    """A search that Ctrl-C ended early is no result of a cell."""
    if way.method == "cluster" and not result.plan.converged:
        raise KeyboardInterrupt
    return result


@dataclass(frozen=True)
class Parents:
    """Both networks alone, and the mean of their logits at every share of B."""

    pair: Pair
    shares: tuple[float, ...]
    tested: int | None = None

    @property
    def needs(self) -> tuple[Training, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        test = unseen(self.pair.data, self.tested)
        a, b = (logits(trained(model), test.images) for model in (self.pair.a, self.pair.b))
        return {
            "a": percent(a, test.labels),
            "b": percent(b, test.labels),
            "ensemble": [percent((1 - share) * a + share * b, test.labels) for share in self.shares],
        }
