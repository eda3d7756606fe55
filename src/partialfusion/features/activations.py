"""Activations as features: channels are alike when they respond alike to the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..blueprint import Blueprint
from ..core.arrays import Floats
from ..core.literals import Site
from ..errors import DataError
from .moments import Moments
from .recorder import Use, record


def activation_costs(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    batches: Iterable[tuple[Any, ...]],
    spaces: Sequence[str],
    site: Site = "pre",
) -> list[dict[str, Floats]]:
    """For every model but the last: space → (n × m) of one minus the correlation of centred channel activations.

    Correlations are averaged over every place where the space is seen.
    """
    moments: list[dict[tuple[str, Use], Moments]] = [{} for _ in models[:-1]]
    for *others, last in record(models, blueprints, batches, spaces, site):
        for table, own in zip(moments, others, strict=True):
            for place, x in own.items():
                table.setdefault(place, Moments()).add(x, last[place])
    return [_costs(table) for table in moments]


def _costs(table: dict[tuple[str, Use], Moments]) -> dict[str, Floats]:
    totals: dict[str, list[Floats]] = {}
    for (space, _), moments in table.items():
        totals.setdefault(space, []).append(finite((1 - moments.correlation()).cpu().numpy(), space))
    return {space: np.mean(found, axis=0) for space, found in totals.items()}


def union_moments(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    batches: Iterable[tuple[Any, ...]],
    spaces: Sequence[str],
    site: Site,
) -> dict[str, list[Moments]]:
    """Space → the moments of all models' channels together, one for every place where the space is seen."""
    table: dict[tuple[str, Use], Moments] = {}
    for found in record(models, blueprints, batches, spaces, site):
        for place in found[-1]:
            union = torch.cat([own[place] for own in found], 1)
            table.setdefault(place, Moments()).add(union, union)
    result: dict[str, list[Moments]] = {}
    for (space, _), moments in table.items():
        result.setdefault(space, []).append(moments)
    return result


def finite(values: Floats, space: str) -> Floats:
    if not np.isfinite(values).all():
        raise DataError(f"the activations of {space} on this data are not finite: check the data for NaN")
    return values
