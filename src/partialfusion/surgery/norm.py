"""Statistics of normalisations in the result: measured on data, or the paper's data-free rule."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..blueprint import Blueprint, Norm, Space
from ..core.batches import feed
from ..core.modules import evaluation_mode, named_tensors
from ..core.text import shorten
from ..errors import DataError
from ..features import Side
from ..features.weights import slices
from ..kernels import Plan
from .apply import SurgeryResult

log = logging.getLogger(__name__)

CHUNK = 1 << 24


def recalibrate(model: nn.Module, blueprint: Blueprint, batches: Iterable[tuple[Any, ...]]) -> None:
    """Measure the statistics anew: the average over the batches of each batch's mean and variance.

    Only the batch norms see training mode, so that dropout stays off; their momentum and mode are restored.
    """
    norms = [m for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    momenta = [m.momentum for m in norms]
    held = {id(m.running_var) for m in norms}
    left = [n.var for n in blueprint.norms if id(named_tensors(model).get(n.var)) not in held]
    if left:
        log.warning(
            "%s belong to no norm module of PyTorch: their statistics are averaged, not measured", shorten(left)
        )
    seen = 0
    with evaluation_mode(model), torch.no_grad():
        for m in norms:
            m.reset_running_stats()
            m.momentum = None
            m.train()
        try:
            for batch in batches:
                feed(model, batch, seen)
                seen += 1
        finally:
            for m, momentum in zip(norms, momenta, strict=True):
                m.momentum = momentum
    if not seen:
        raise DataError("the data holds no batch: norm='recalibrate' needs at least one")


def analytic(result: SurgeryResult, models: Sequence[nn.Module], blueprints: Sequence[Blueprint], plan: Plan) -> None:
    """Variances of fused channels without data.

    The mean of a weighted sum of channels is the weighted sum of their means, which surgery has written already. Its
    variance is Σ_ef w_e w_f σ_e σ_f ρ_ef; for standard normal inputs the correlation ρ of two channels is the cosine
    of the weights that compute them, both in the last model's world (the paper's appendix on ResNets).

    Args:
        result: the fused model and its layout; the model's variances are written in place.
        models: the sources.
        blueprints: their blueprints.
        plan: the plan that made the result.
    """
    sides = [Side(b, named_tensors(m)) for b, m in zip(blueprints, models, strict=True)]
    targets = named_tensors(result.model)
    with torch.no_grad():
        for norm in blueprints[-1].norms:
            for space, binding in blueprints[-1].axes.get(norm.var, {}).get(0, ()):
                rows = [_directions(side, norm, space, plan, m) for m, side in enumerate(sides)]
                places = result.layout[space.name].index(norm.var, 0)
                for slot in range(binding.index.shape[1]):
                    sources = [s.blueprint[space.name].index(norm.var, 0)[:, slot] for s in sides]
                    stds = [
                        s.number(norm.var)[torch.from_numpy(i).to(s.number(norm.var).device)].double().sqrt()
                        for s, i in zip(sides, sources, strict=True)
                    ]
                    var = _variance(plan, space, stds, rows)
                    target = targets[norm.var]
                    target[torch.from_numpy(places[:, slot]).to(target.device)] = var.to(target)


def _directions(side: Side, norm: Norm, space: Space, plan: Plan, m: int) -> Tensor | None:
    """(units × d) unit vectors along the weights that compute each unit, in the last model's world."""
    world = {name: plan[name].world[m] for name in plan}
    rows = [
        slices(side.project(b.parameter, world, keep=b.axis), b)
        for b in side.blueprint[space.name].bindings
        if b.parameter in norm.sources and b.role != "reads"
    ]
    if not rows:
        return None
    joined = torch.cat(rows, 1)
    return joined / joined.norm(dim=1, keepdim=True).clamp_min(torch.finfo(joined.dtype).tiny)


def _variance(plan: Plan, space: Space, stds: list[Tensor], rows: list[Tensor | None]) -> Tensor:
    """(targets,) variance of every target channel of a space."""
    reduction = plan[space.name]
    starts = np.cumsum([0] + [p.sources for p in reduction.pairs])
    target = np.concatenate([p.target for p in reduction.pairs])
    source = np.concatenate([p.source + starts[m] for m, p in enumerate(reduction.pairs)])
    weight = np.concatenate([p.write for p in reduction.pairs])
    entries = len(target)
    inside = coo_array((np.ones(entries), (target, np.arange(entries))), shape=(reduction.width, entries)).tocsr()
    first, second = (inside.T @ inside).nonzero()
    std = torch.cat(stds)
    device = std.device
    e, f = (torch.from_numpy(source[i].astype(np.int64)).to(device) for i in (first, second))
    pair_weight = torch.from_numpy(weight[first] * weight[second]).to(device)
    known = [r for r in rows if r is not None]
    rho = _cosines(torch.cat(known), e, f) if len(known) == len(rows) else torch.ones_like(pair_weight)
    share = pair_weight * std[e] * std[f] * rho
    total = torch.zeros(reduction.width, dtype=share.dtype, device=device)
    return total.index_add_(0, torch.from_numpy(target[first].astype(np.int64)).to(device), share).clamp_min_(0.0)


def _cosines(rows: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """ρ of entry pairs from unit vectors, a channel with itself exactly one."""
    step = max(1, CHUNK // rows.shape[1])
    parts = [
        (rows[e[i : i + step]] * rows[f[i : i + step]]).sum(1, dtype=torch.float64) for i in range(0, len(e), step)
    ]
    return torch.cat(parts).clamp_(-1.0, 1.0).masked_fill_(e == f, 1.0)
