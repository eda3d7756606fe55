"""Activations as features: channels are alike when they respond alike to the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..blueprint import Blueprint, at_rest, named_tensors
from ..data import feed
from ..errors import DataError
from ..kernels.coupling import Floats

Site = tuple[str, int]  # a weight that writes a space, and the how-many-th use of it


COMPUTES = {"linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
COMPUTES |= {"embedding", "matmul", "mm", "bmm", "addmm", "__matmul__", "__rmatmul__"}
TURNS = {"t", "transpose", "permute", "swapaxes", "__get__"}  # the last is what x.T and x.mT are


class Recorder(TorchFunctionMode):
    """Keeps what chosen weights compute, wherever and however often the model uses them."""

    def __init__(self, model: nn.Module, output_dims: dict[str, int]) -> None:
        super().__init__()
        tensors = named_tensors(model)
        self.watched = {id(tensors[name]): (name, dim) for name, dim in output_dims.items()}
        self.found: dict[Site, Tensor] = {}
        self.uses: dict[str, int] = {}
        self.turned: list[Tensor] = []

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if isinstance(result, Tensor) and (name in COMPUTES or name in TURNS):
            for value in (*args, *(kwargs or {}).values()):
                if isinstance(value, Tensor) and id(value) in self.watched:
                    if name in COMPUTES:
                        self._keep(*self.watched[id(value)], result)
                    elif result.dim() > 1:
                        self.watched[id(result)] = self.watched[id(value)]
                        self.turned.append(result)
        return result

    def _keep(self, name: str, dim: int, output: Tensor) -> None:
        use = self.uses.get(name, 0)
        self.uses[name] = use + 1
        # a copy, for the model may go on to write into its activations
        self.found[name, use] = output.detach().movedim(dim, -1).flatten(0, -2).clone()


class Moments:
    """Streamed cross-correlations of two sets of channels: (samples × n) with (samples × m).

    Values are shifted by the first batch's mean before they are summed, so that nothing cancels.
    """

    def __init__(self) -> None:
        self.count = 0
        self.shift: tuple[Tensor, Tensor] | None = None

    def add(self, x: Tensor, y: Tensor) -> None:
        if self.shift is None:
            self.shift = x.mean(0), y.mean(0)
            self.sums = [torch.zeros(t.shape[1], dtype=torch.float64, device=t.device) for t in (x, y)]
            self.squares = [torch.zeros_like(s) for s in self.sums]
            self.cross = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64, device=x.device)
        x, y = x - self.shift[0], y - self.shift[1]
        self.count += len(x)
        for k, t in enumerate((x, y)):
            self.sums[k] += t.sum(0)
            self.squares[k] += t.square().sum(0)
        self.cross += x.T @ y

    def correlation(self) -> Tensor:
        """(n × m); a channel that never varies is uncorrelated with all but others that never vary."""
        mean = [s / self.count for s in self.sums]
        var = [q / self.count - mu.square() for q, mu in zip(self.squares, mean, strict=True)]
        dead = [v <= 1e-12 * (q / self.count).clamp_min(1e-30) for v, q in zip(var, self.squares, strict=True)]
        std = [v.clamp_min(0).sqrt().masked_fill(d, 1.0) for v, d in zip(var, dead, strict=True)]
        cov = self.cross / self.count - mean[0][:, None] * mean[1][None, :]
        corr = (cov / (std[0][:, None] * std[1][None, :])).clamp(-1, 1)
        neither, both = dead[0][:, None] | dead[1][None, :], dead[0][:, None] & dead[1][None, :]
        return corr.masked_fill(neither, 0.0).masked_fill(both, 1.0)


def activation_costs(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    batches: Iterable[tuple[Any, ...]],
    spaces: Sequence[str],
) -> list[dict[str, Floats]]:
    """For every model but the last: space → (n × m) of one minus the correlation of centred channel activations.

    Correlations are averaged over every place that writes the space; each batch is run once through every model and
    forgotten.
    """
    writers = [_writers(b, spaces) for b in blueprints]
    moments: list[dict[tuple[str, Site, int], Moments]] = [{} for _ in models[:-1]]
    seen = 0
    with at_rest(*models):
        for batch in batches:
            recorded = []
            for model, own in zip(models, writers, strict=True):
                dims = {name: dim for name, dim, _, _ in own}
                with Recorder(model, dims) as recorder:
                    feed(model, batch, seen)
                recorded.append(recorder.found)
            for k, table in enumerate(moments):
                _accumulate(table, recorded[k], recorded[-1], writers[k], writers[-1])
            seen += 1
    if not seen:
        raise DataError("the data holds no batch: activations need at least one")
    return [_costs(table) for table in moments]


Writer = tuple[str, int, str, np.ndarray]  # weight, output dimension, space, positions of the units


def _writers(blueprint: Blueprint, spaces: Sequence[str]) -> list[Writer]:
    return [
        (b.parameter, b.output_dim, name, b.index)
        for name in spaces
        for b in blueprint[name].bindings
        if b.role == "writes" and b.output_dim is not None
    ]


def _accumulate(
    table: dict[tuple[str, Site, int], Moments],
    ours: dict[Site, Tensor],
    theirs: dict[Site, Tensor],
    our_writers: Sequence[Writer],
    their_writers: Sequence[Writer],
) -> None:
    for (name, _, space, index), (*_, their_index) in zip(our_writers, their_writers, strict=True):
        for site in (s for s in ours if s[0] == name):
            for slot in range(index.shape[1]):
                x = ours[site][:, torch.from_numpy(index[:, slot]).to(ours[site].device)]
                y = theirs[site][:, torch.from_numpy(their_index[:, slot]).to(x.device)]
                table.setdefault((space, site, slot), Moments()).add(x.float(), y.float())


def _costs(table: dict[tuple[str, Site, int], Moments]) -> dict[str, Floats]:
    totals: dict[str, list[Floats]] = {}
    for (space, _, _), moments in table.items():
        cost = (1 - moments.correlation()).cpu().numpy()
        if not np.isfinite(cost).all():
            raise DataError(f"the activations of {space} on this data are not finite: check the data for NaN")
        totals.setdefault(space, []).append(cost)
    return {space: np.mean(found, axis=0) for space, found in totals.items()}
