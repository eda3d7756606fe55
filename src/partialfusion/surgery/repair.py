"""Repair where there are no norms: fused channels get back the spread that the channels they are made of have.

An average of channels that are not perfectly correlated varies less than they do, and layer after layer the activations
of a fused network fade. Where a batch norm follows, its statistics make up for that (`norm.py`); elsewhere the layer's
own weight and bias can (REPAIR, Jordan et al. 2023).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..blueprint import AxisBinding, Blueprint
from ..core.arrays import Bools
from ..core.inputs import Inputs
from ..core.modules import at_rest, named_tensors
from ..core.observer import LayerCall, Observer, Stop
from ..core.text import shorten
from ..features import TracedModel
from ..kernels import Reduction
from .apply import SurgeryResult
from .norm import directions, mixed_variance
from .refit.schedule import Data
from .refit.steps import LayerCalls, Step, common_steps
from .refit.targets import Union

log = logging.getLogger(__name__)

# A channel whose variance is below this part of its mean square does not vary, and is left alone.
DEAD = 1e-10
# A spread or mean that is off by less, relative to the spread, is right: what is left is rounding of single precision.
RIGHT = 1e-5


def repair(
    result: SurgeryResult, models: Sequence[nn.Module], blueprints: Sequence[Blueprint], batches: Iterable[Inputs]
) -> tuple[str, ...]:
    """Give fused channels the spread and the mean of their sources, measured on data, in the order of computation.

    Linear layers and convolutions that no batch norm follows, depthwise and transposed ones among them, are rescaled,
    one channel at a time: mean and standard deviation of what they compute become the weighted means of the sources'.
    Without a bias nothing can be shifted; the scale is then the one that brings both nearest to that. Layers above see
    the layers below repaired. Channels that one of several models has for itself stay as they are, and so do the
    outputs of the network.

    Args:
        result: the fused model, which is written in place, and its plan.
        models: the sources.
        blueprints: their blueprints.
        batches: inputs; read several times.

    Returns:
        The parameters whose channels could not be repaired.
    """
    data = Data(batches)
    union = Union(result.model, result.layout, models, blueprints, result.plan)
    observed = [LayerCalls(m, data.first) for m in (*models, result.model)]
    steps = [s for s in common_steps(observed) if s.name is not None and union.fits(s)]
    fused, tied = repaired_channels(result, blueprints[-1])
    normed = {name for norm in blueprints[-1].norms for name in norm.sources} | {s.name for s in steps if s.norm}
    steps = [s for s in steps if s.name not in tied]
    left = [name for name, mask in fused.items() if mask.any() and name not in normed | {s.name for s in steps}]
    steps = [s for s in steps if s.norm is None and s.key in fused and fused[s.key].any()]
    sources = [_spreads(model, steps, data) for model in models] if steps else []
    for step in steps:
        wanted = [per_model[step.key] for per_model in sources]
        _rescale(union, step, fused[step.key], wanted, _spreads(result.model, [step], data)[step.key])
    return _named(left)


def repair_by_weights(
    result: SurgeryResult, models: Sequence[nn.Module], blueprints: Sequence[Blueprint]
) -> tuple[str, ...]:
    """Give fused channels the spread of their sources without data.

    For standard normal inputs the spread of a channel is the length of the weights that compute it, and the correlation
    of two channels their cosine, both in the reference frame. Biases stay.

    Args:
        result: the fused model, which is written in place, and its plan.
        models: the sources.
        blueprints: their blueprints.

    Returns:
        The parameters whose channels could not be repaired.
    """
    sources = [TracedModel.of(m, b) for m, b in zip(models, blueprints, strict=True)]
    targets, plan, last = named_tensors(result.model), result.plan, blueprints[-1]
    fused, tied = repaired_channels(result, last)
    normed = {name for norm in last.norms for name in norm.sources}
    left = []
    for space in last:
        for binding in space.bindings:
            name, axis = binding.parameter, binding.axis
            if not _computes(binding) or name in normed or name not in fused or not fused[name].any():
                continue
            if binding.dim is None or name in tied:
                left.append(name)
                continue
            rows = [directions(source, [name], space, plan, m) for m, source in enumerate(sources)]
            known = [found for found in rows if found is not None]
            lengths, units = [length for _, length in known], [unit for unit, _ in known]
            wanted = _mixed(plan[space.name], lengths)
            spread = mixed_variance(plan, space, [length[:, None] for length in lengths], units)
            found = spread[:, 0].sqrt().to(wanted)
            scale = torch.where(found > 1e-6 * wanted, wanted / found, 1.0)
            scale = torch.where((scale - 1).abs() > RIGHT, scale, 1.0)
            places = torch.from_numpy(result.layout[space.name].index(name, axis))
            factors = torch.ones(targets[name].shape[axis], dtype=torch.float64)
            factors[places.reshape(-1)] = scale.repeat_interleave(places.shape[1])
            factors[torch.from_numpy(~fused[name])] = 1.0
            with torch.no_grad():
                moved = targets[name].movedim(axis, -1)
                moved.mul_(factors.to(moved))
    return _named(left)


def _named(left: Iterable[str]) -> tuple[str, ...]:
    """What could not be repaired, which is logged."""
    names = tuple(dict.fromkeys(left))
    if names:
        log.warning("%s not repaired: the models use them in several ways, or not as layers", shorten(names))
    return names


def _computes(binding: AxisBinding) -> bool:
    """Whether a parameter is a layer's weight that computes these channels, or is such an activation itself; not one
    that only scales what others compute."""
    return binding.role == "writes" or (binding.role == "scales" and binding.dim is not None)


def repaired_channels(result: SurgeryResult, blueprint: Blueprint) -> tuple[dict[str, Bools], set[str]]:
    """Parameter → which positions on the axis that carries what it computes are to be repaired; not those of outputs.
    And the parameters with another use, which a scale on that axis would change, too: an embedding that is also the
    last layer, a weight that maps back what it computes.

    Args:
        result: the fused model and its plan.
        blueprint: the blueprint of the last source.
    """
    shapes = {name: tuple(p.shape) for name, p in result.model.named_parameters()}
    masks: dict[tuple[str, int], Bools] = {}
    for space in blueprint:
        changed = _changed(result.plan[space.name]) & (space.kind != "rigid")
        for b in result.layout[space.name].bindings:
            if _computes(b) and len(shapes.get(b.parameter, ())) > 1:
                mask = masks.setdefault((b.parameter, b.axis), np.zeros(shapes[b.parameter][b.axis], bool))
                mask[b.index.reshape(-1)] |= np.repeat(changed, b.index.shape[1])
    found: dict[str, Bools] = {}
    for (name, _), mask in masks.items():
        if name not in found or not found[name].any():
            found[name] = mask
    computed = Counter(name for name, _ in masks)
    read = {(b.parameter, b.axis) for space in blueprint for b in space.bindings if b.role == "reads"}
    return found, {name for name, axis in masks if computed[name] > 1 or (name, axis) in read}


def _changed(reduction: Reduction) -> Bools:
    """(width,) whether a channel is made of more than one that has a share in it; of a single model, all channels:
    those that are kept as they are read fewer."""
    if len(reduction.pairs) == 1:
        return np.ones(reduction.width, bool)
    entries = [pair.writing() for pair in reduction.pairs]
    counts = [np.bincount(e.target[e.weight != 0], minlength=reduction.width) for e in entries]
    return np.asarray(np.sum(counts, axis=0) > 1)


def _mixed(reduction: Reduction, values: Sequence[Tensor]) -> Tensor:
    """(width,) the weighted mean of a number of every source channel."""
    total = torch.zeros(reduction.width, dtype=torch.float64)
    for pair, value in zip(reduction.pairs, values, strict=True):
        entries = pair.writing()
        target, source = (torch.from_numpy(index.astype(np.int64)) for index in (entries.target, entries.source))
        total.index_add_(0, target, torch.from_numpy(np.abs(entries.weight)) * value.double().cpu()[source])
    return total


class _Spread:
    """Mean and standard deviation of the channels of a layer's output, one batch at a time."""

    def __init__(self) -> None:
        self.count = 0
        self.sums: list[Tensor] = []

    def add(self, rows: Tensor) -> None:
        """Count (samples × channels)."""
        if not self.count:
            self.shift = rows.mean(0)
        moved = rows - self.shift
        new = [moved.sum(0, dtype=torch.float64), moved.square().sum(0, dtype=torch.float64)]
        self.sums = [a + b for a, b in zip(self.sums, new, strict=True)] if self.count else new
        self.count += len(rows)

    @property
    def mean(self) -> Tensor:
        return self.shift.double() + self.sums[0] / self.count

    @property
    def std(self) -> Tensor:
        """Zero where a channel does not vary."""
        var = (self.sums[1] / self.count - (self.sums[0] / self.count).square()).clamp_min(0)
        return torch.where(var > DEAD * (var + self.mean.square()), var, 0.0).sqrt()


class _Outputs(Observer):
    """Adds what some layers compute to their spreads, and stops the network after the last of them."""

    def __init__(self, model: nn.Module, steps: Sequence[Step]) -> None:
        self.steps = {s.key: s for s in steps}
        self.found = {s.key: _Spread() for s in steps}
        super().__init__(model)

    def start(self) -> None:
        super().start()
        self.left = sum(s.uses for s in self.steps.values())

    def after(self, call: LayerCall, result: Tensor) -> None:
        if call.name not in self.steps:
            return
        rows = self.steps[call.name].layout.rows(result)
        self.found[call.name].add(rows.to(torch.promote_types(rows.dtype, torch.float32)))
        self.left -= 1
        if not self.left:
            raise Stop


def _spreads(model: nn.Module, steps: Sequence[Step], data: Data) -> Mapping[str, _Spread]:
    observer = _Outputs(model, steps)
    with at_rest(model):
        for number, batch in enumerate(data):
            observer.run(batch, number)
    return observer.found


def _rescale(union: Union, step: Step, fused: Bools, wanted: Sequence[_Spread], own: _Spread) -> None:
    """Make a layer's fused channels vary as their sources do."""
    maps = [union.channel_map(step, m) for m in range(len(wanted))]
    weight = union.tensors[step.key]
    held, written = step.layout.sizes(weight)
    fused = fused if held == written else np.repeat(fused[::held], written)

    def mixed(values: Sequence[Tensor]) -> Tensor:
        return torch.stack([f(v[None], 1)[0] for f, v in zip(maps, values, strict=True)]).sum(0).to(own.mean)

    mean, std = mixed([w.mean for w in wanted]), mixed([w.std for w in wanted])
    alive = (own.std > 0) & (std > 0)
    if step.bias is None:
        scale = (own.mean * mean + own.std * std) / (own.mean.square() + own.std.square())
    else:
        scale = std / own.std
    off = alive & (((scale - 1).abs() > RIGHT) | ((mean - own.mean).abs() > RIGHT * std))
    changed = torch.from_numpy(fused).to(off.device) & off
    scale = torch.where(changed, scale, 1.0)
    with torch.no_grad():
        matrix = step.layout.matrix(weight)
        weight.copy_(step.layout.weight(matrix * scale.to(weight).view(*matrix.shape[:2], 1), weight))
        if step.bias is not None:
            bias = union.tensors[step.bias]
            moved = scale * bias.to(scale) + mean - scale * own.mean
            bias.copy_(torch.where(changed, moved, bias.to(moved)))
