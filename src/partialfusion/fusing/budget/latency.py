"""The latency of results: measured against the last model, and predicted from a few sizes that were measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import nn

from ...blueprint import Blueprint
from ...core.inputs import Inputs
from ...core.modules import at_rest
from ...core.timing import interleaved_times, paired_ratios
from ...kernels import KernelPair, Plan, Reduction
from ...surgery import apply
from ...surgery.layout import in_channels_last
from ..sources import Sources
from .paths import Path
from .sizes import Sizes, Structure, Support

# How long a network and the last model are timed, and the least and the greatest number of rounds.
SECONDS, FEWEST, MOST = 0.5, 15, 201
ROUNDS = 7  # at least so many, where a call may be slow and an estimate will do
MIXED = 3  # measured sizes in which the spaces are of different fractions


class OneByOne(nn.Module):
    """Models that are called one after the other, as for an ensemble."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [model(*args, **kwargs) for model in self.models]


class Stopwatch:
    """Times networks against the last model, on the example inputs and in interleaved calls.

    Args:
        model: the last model.
        inputs: example inputs, with the batch size to measure.
        fewest: the least number of rounds, where slow networks need not be timed as often as usual.
    """

    def __init__(self, model: nn.Module, inputs: Inputs, *, fewest: int | None = None) -> None:
        self.model, self.inputs = model, inputs.on_device_of(model)
        self.fewest = fewest

    def ratio(self, other: nn.Module) -> float:
        """The time of a call, relative to the last model."""
        return self.ratios({"other": other})["other"]

    def ratios(self, others: Mapping[str, nn.Module]) -> dict[str, float]:
        """The times of calls of several networks, relative to the last model."""
        args, kwargs, device = self.inputs.args, self.inputs.kwargs, next(self.model.parameters()).device
        modules = {"": self.model, **others}
        functions = {name: partial(module, *args, **kwargs) for name, module in modules.items()}
        with at_rest(*modules.values()), torch.no_grad():
            times = interleaved_times(
                functions, seconds=SECONDS, fewest=self.fewest or FEWEST, most=MOST, device=device
            )
        return paired_ratios(times, "", device)


def faster_layout(model: nn.Module, inputs: Inputs) -> Callable[[nn.Module], nn.Module]:
    """What puts networks into the memory layout in which this one is called faster: channels-last, or as they are.

    Which one that is depends on the processor and the batch, so it is measured.
    """
    other = in_channels_last(model, inputs)
    if other is model or Stopwatch(model, inputs, fewest=ROUNDS).ratio(other) >= 1:
        return lambda network: network
    return lambda network: in_channels_last(network, inputs)


def predicted_latency(
    sources: Sources, paths: Sequence[Path], structure: Structure, stopwatch: Stopwatch
) -> Callable[[Sizes], float]:
    """What predicts the latency of a result from its other sizes.

    The last model is timed at some widths: the smallest, the middle and the largest that the spaces may have from
    alpha=0 on, and some at random. A constant and non-negative prices per operation, parameter and channel are
    fitted to these times.

    Args:
        sources: the models.
        paths: the sizes that spaces may have.
        structure: counts results.
        stopwatch: measures.
    """
    single = structure.sizes({})
    rng = np.random.default_rng(0)
    places = [[0.0] * len(paths), [0.5] * len(paths), [1.0] * len(paths), *rng.random((MIXED, len(paths))).tolist()]
    rows, times = [_features(single, single)], [1.0]
    for place in places:
        supports: dict[str, Support] = {}
        for path, at in zip(paths, place, strict=True):
            first = next(t for t, fraction in enumerate(path.fractions) if fraction >= 0)
            supports |= path.supports[first + round(at * (len(path.supports) - 1 - first))]
        widths = {space: support.total() for space, support in supports.items()}
        module = _with_widths(sources.models[-1], sources.blueprint, widths, sources.inputs)
        rows.append(_features(structure.sizes(supports), single))
        times.append(stopwatch.ratio(module))
    relative = np.array(rows) / np.array(times)[:, None]
    prices, _ = nnls(relative, np.ones(len(times)))
    return lambda sizes: float(_features(sizes, single) @ prices)


def _features(sizes: Sizes, single: Sizes) -> np.ndarray:
    """A constant, and operations, parameters and channels relative to the last model."""
    parts = ("flops", "dense", "channels")
    return np.array([1.0, *(getattr(sizes, p) / max(getattr(single, p), 1.0) for p in parts)])


def _with_widths(model: nn.Module, blueprint: Blueprint, widths: Mapping[str, int], inputs: Inputs) -> nn.Module:
    """A model with other widths, its channels repeated or left out; what it computes does not matter."""
    reductions = {}
    for space in blueprint:
        n, m = space.width, widths.get(space.name, space.width)
        index = np.arange(m)
        pair = KernelPair(index, index % n, np.ones(m), np.full(m, min(1.0, n / m)), m, n)
        reductions[space.name] = Reduction((pair,), 0, (m,), (KernelPair.identity(n),))
    return apply([model], [blueprint], Plan(reductions, (1.0,)), inputs).model
