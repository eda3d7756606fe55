"""Trained networks fused or pruned by a configured method, as every cell does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

import partialfusion as pf
from partialfusion.core.literals import Zeros

from ..methods import MethodConfig
from ..recipes import Pair, Recipe
from ..text_recipes import TextPair
from ..trained import blueprint, example, trained


def fused(
    pair: Pair | TextPair,
    config: MethodConfig,
    data: Sequence[Tensor] | None,
    seed: int,
    *,
    zeros: Zeros = "kept",
    **options: Any,
) -> pf.Fusion:
    """A pair fused; the size and the mix are among the options, which go to `pf.fuse`."""
    result = pf.fuse(
        [trained(pair.a), trained(pair.b)],
        example(pair.b),
        align=config.alignment,
        masses=config.masses,
        seed=seed,
        zeros=zeros,
        **config.options(data, blueprint(pair.b)),
        **options,
    )
    return uninterrupted(result, config)


def pruned(model: Recipe, config: MethodConfig, data: Sequence[Tensor] | None, seed: int, **options: Any) -> pf.Fusion:
    """A network pruned; the size is among the options, which go to `pf.prune`."""
    result = pf.prune(trained(model), example(model), seed=seed, **config.options(data, blueprint(model)), **options)
    return uninterrupted(result, config)


def uninterrupted(result: pf.Fusion, config: MethodConfig) -> pf.Fusion:
    """The result, unless Ctrl-C ended its search early: then there is nothing to store."""
    if config.method == "cluster" and not result.plan.converged:
        raise KeyboardInterrupt
    return result
