"""Statistics of normalisations in the result: measured on data, or the paper's data-free rule."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import Tensor, nn
from torch.nn import functional as F

from ..blueprint import Blueprint, Norm, Space
from ..core.inputs import Inputs
from ..core.modules import evaluation_mode, named_tensors
from ..core.observer import LayerCall, Observer
from ..core.text import shorten
from ..errors import DataError
from ..features import TracedModel
from ..features.weights import slices
from ..kernels import Plan
from .apply import SurgeryResult

log = logging.getLogger(__name__)

CHUNK = 1 << 24


def recalibrate(model: nn.Module, blueprint: Blueprint, batches: Iterable[Inputs]) -> None:
    """Measure the statistics anew: the average over the batches of each batch's mean and variance, by their samples.

    Only norms that run on stored statistics measure; the rest of the model is in evaluation mode, so dropout is off.
    """
    observer = _Measuring(model)
    seen = 0
    with evaluation_mode(model), torch.no_grad():
        for batch in batches:
            observer.run(batch, seen)
            seen += 1
    if not seen:
        raise DataError("the data holds no batch: norm='recalibrate' needs at least one")
    for name, count in observer.calls.items():
        counter = getattr(observer.norms.get(name), "num_batches_tracked", None)
        if counter is not None:
            counter.fill_(count)
    left = [norm.var for norm in blueprint.norms if norm.var not in observer.measured]
    if left:
        log.warning("%s are averaged, not measured: no batch or instance norm of PyTorch uses them", shorten(left))


class _Measuring(Observer):
    """Lets norms normalise by each batch's own statistics, and keeps the average over the batches.

    Attributes:
        measured: variance → how many values of each channel it was measured on; a batch counts by what it holds.
        calls: variance → how many times it was measured.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.measured: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def compute(self, call: LayerCall, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if call.kind != "norm":
            return super().compute(call, function, args, kwargs)
        given = call.arguments
        if not self.measured[call.name]:
            for statistic, start in (("running_mean", 0.0), ("running_var", 1.0)):
                given[statistic].fill_(start)
        values = call.x.numel() // call.x.shape[1]
        self.measured[call.name] += values
        self.calls[call.name] += 1
        normalise: Callable[..., Tensor] = F.batch_norm if call.operation == "batch_norm" else F.instance_norm
        tensors = (given.get(name) for name in ("running_mean", "running_var", "weight", "bias"))
        return normalise(call.x, *tensors, True, values / self.measured[call.name], given.get("eps", 1e-5))


def analytic(result: SurgeryResult, models: Sequence[nn.Module], blueprints: Sequence[Blueprint]) -> None:
    """Variances of fused channels without data.

    The mean of a weighted sum of channels is the weighted sum of their means, which surgery has written already. Its
    variance is Σ_ef w_e w_f σ_e σ_f ρ_ef; for standard normal inputs the correlation ρ of two channels is the cosine
    of the weights that compute them, both in the reference frame (the paper's appendix on ResNets).

    Args:
        result: the fused model and its plan; the model's variances are written in place.
        models: the sources.
        blueprints: their blueprints.
    """
    sources = [TracedModel.of(m, b) for m, b in zip(models, blueprints, strict=True)]
    targets, plan = named_tensors(result.model), result.plan
    with torch.no_grad():
        for norm in blueprints[-1].norms:
            for space, _ in blueprints[-1].axes.get(norm.var, {}).get(0, ()):
                found = [directions(source, norm.sources, space, plan, m) for m, source in enumerate(sources)]
                units = [None if rows is None else rows[0] for rows in found]
                stds = [_deviations(source, norm, space) for source in sources]
                places, target = result.layout[space.name].index(norm.var, 0), targets[norm.var]
                variance = mixed_variance(plan, space, stds, units)
                target[torch.from_numpy(places).to(target.device)] = variance.to(target)


def _deviations(source: TracedModel, norm: Norm, space: Space) -> Tensor:
    """(units × multiplicity) stored standard deviations of a model's channels."""
    variance = source.number(norm.var)
    index = source.blueprint[space.name].index(norm.var, 0)
    return variance[torch.from_numpy(index).to(variance.device)].double().sqrt()


def directions(
    source: TracedModel, weights: Collection[str], space: Space, plan: Plan, m: int
) -> tuple[Tensor, Tensor] | None:
    """(units × d) unit vectors along the weights that compute each unit, in the reference frame, and their lengths."""
    frame = {name: reduction.frames[m] for name, reduction in plan.items()}
    rows = [
        slices(source.mapped(b.parameter, frame, keep=b.axis), b)
        for b in source.blueprint[space.name].bindings
        if b.parameter in weights and b.role != "reads"
    ]
    if not rows:
        return None
    joined = torch.cat(rows, 1)
    lengths = joined.norm(dim=1)
    return joined / lengths[:, None].clamp_min(torch.finfo(joined.dtype).tiny), lengths


def mixed_variance(plan: Plan, space: Space, stds: Sequence[Tensor], rows: Sequence[Tensor | None]) -> Tensor:
    """(targets × multiplicity) variance of every target channel of a space.

    Args:
        plan: how source channels enter the targets.
        space: the space.
        stds: per model, (units × multiplicity) standard deviations.
        rows: per model, (units × d) unit vectors whose cosines are the correlations; where they are not known, all one.
    """
    reduction = plan[space.name]
    starts = np.cumsum([0] + [p.sources for p in reduction.pairs])
    target = np.concatenate([p.target for p in reduction.pairs])
    source = np.concatenate([p.source + starts[m] for m, p in enumerate(reduction.pairs)])
    weight = np.concatenate([p.write for p in reduction.pairs])
    entries = len(target)
    inside = coo_array((np.ones(entries), (target, np.arange(entries))), shape=(reduction.width, entries)).tocsr()
    first, second = (inside.T @ inside).nonzero()
    std = torch.cat(list(stds))
    device = std.device
    e, f = (torch.from_numpy(source[i].astype(np.int64)).to(device) for i in (first, second))
    pair_weight = torch.from_numpy(weight[first] * weight[second]).to(device)
    known = [r for r in rows if r is not None]
    others = torch.from_numpy(np.flatnonzero(source[first] != source[second])).to(device)
    rho = _cosines(torch.cat(known), e, f, others) if len(known) == len(rows) else torch.ones_like(pair_weight)
    terms = (pair_weight * rho)[:, None] * std[e] * std[f]
    total = torch.zeros(reduction.width, std.shape[1], dtype=terms.dtype, device=device)
    return total.index_add_(0, torch.from_numpy(target[first].astype(np.int64)).to(device), terms).clamp_min_(0.0)


def _cosines(rows: Tensor, e: Tensor, f: Tensor, others: Tensor) -> Tensor:
    """ρ of entry pairs from unit vectors, a channel with itself exactly one; `others`: pairs of two channels."""
    step = max(1, CHUNK // rows.shape[1])
    found = torch.ones(len(e), dtype=torch.float64, device=rows.device)
    for part in others.split(step):
        found[part] = (rows[e[part]] * rows[f[part]]).sum(1, dtype=torch.float64).clamp_(-1.0, 1.0)
    return found
