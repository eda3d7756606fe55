"""Seeing activations: what chosen weights compute and read while a model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..blueprint import AxisBinding, Blueprint
from ..core.arrays import Ints
from ..core.batches import feed
from ..core.literals import Site
from ..core.modules import at_rest, named_tensors
from ..errors import DataError

Use = tuple[str, str, int]  # a weight, its role, and the how-many-th use of it

COMPUTES = {"linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
COMPUTES |= {"embedding", "matmul", "mm", "bmm", "addmm", "__matmul__", "__rmatmul__"}
TURNS = {"t", "transpose", "permute", "swapaxes", "__get__"}  # the last is what x.T and x.mT are


@dataclass(frozen=True)
class Tap:
    """A place where the channels of a space can be seen.

    Attributes:
        space: name of the space.
        weight: the weight at work there.
        role: "writes" to see what the weight computes, "reads" to see what it is given.
        dim: channel dimension of that activation, from the end.
        index: (units × slots) positions of the units along it.
    """

    space: str
    weight: str
    role: str
    dim: int
    index: Ints


class Recorder(TorchFunctionMode):
    """Keeps what chosen weights compute and read, wherever and however often the model uses them."""

    def __init__(self, model: nn.Module, taps: Iterable[Tap]) -> None:
        super().__init__()
        tensors = named_tensors(model)
        self.watched: dict[int, tuple[str, dict[str, int]]] = {}
        for tap in taps:
            self.watched.setdefault(id(tensors[tap.weight]), (tap.weight, {}))[1][tap.role] = tap.dim
        self.found: dict[Use, Tensor] = {}
        self.uses: dict[str, int] = {}
        self.turned: list[Tensor] = []

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        weights = []
        if name in COMPUTES or name in TURNS:
            weights = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and id(v) in self.watched]
        for weight in weights:
            if name in COMPUTES and "reads" in self.watched[id(weight)][1]:
                self._keep(weight, "reads", _operand(name, args, kwargs, weight))
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            for weight in weights:
                if name in COMPUTES:
                    self._keep(weight, "writes", result)
                    self.uses[self.watched[id(weight)][0]] = self._use(weight) + 1
                elif result.dim() > 1:
                    self.watched[id(result)] = self.watched[id(weight)]
                    self.turned.append(result)
        return result

    def _use(self, weight: Tensor) -> int:
        return self.uses.get(self.watched[id(weight)][0], 0)

    def _keep(self, weight: Tensor, role: str, activation: Tensor) -> None:
        name, dims = self.watched[id(weight)]
        if role in dims:
            # a copy, for the model may go on to write into its activations
            flat = activation.detach().movedim(dims[role], -1).flatten(0, -2).clone()
            self.found[name, role, self._use(weight)] = flat


def _operand(name: str, args: Sequence[Any], kwargs: dict[str, Any], weight: Tensor) -> Tensor:
    """What a weight is applied to."""
    if name == "addmm":
        return args[1] if len(args) > 1 else kwargs["mat1"]
    operands = [v for v in (*args[:2], *kwargs.values()) if isinstance(v, Tensor) and v is not weight]
    return kwargs["input"] if isinstance(kwargs.get("input"), Tensor) else operands[0]


def taps_of(blueprint: Blueprint, spaces: Sequence[str], site: Site) -> list[Tap]:
    """Where to look at the spaces: at the wanted site, or at the other one where a space has none.

    "auto" looks before the activation function, but for spaces with a batch norm after it: what is computed there has
    no scale before it is normalised.
    """
    statistics = {norm.var for norm in blueprint.norms}
    found = []
    for name in spaces:
        bindings = blueprint[name].bindings
        after = site == "post" or (site == "auto" and any(b.parameter in statistics for b in bindings))
        for role in ("reads", "writes") if after else ("writes", "reads"):
            seen = [b for b in bindings if b.role == role and b.dim is not None]
            if seen:
                found += [_tap(name, b) for b in seen]
                break
    return found


def _tap(space: str, binding: AxisBinding) -> Tap:
    assert binding.dim is not None
    return Tap(space, binding.parameter, binding.role, binding.dim, binding.index)


def record(
    models: Sequence[nn.Module],
    blueprints: Sequence[Blueprint],
    batches: Iterable[tuple[Any, ...]],
    spaces: Sequence[str],
    site: Site,
) -> Iterator[list[dict[tuple[str, Use], Tensor]]]:
    """For every batch, per model: (space, use of a weight) → (samples × units × slots) activations.

    Each batch is run once through every model and forgotten; positions count as samples.
    """
    taps = [taps_of(b, spaces, site) for b in blueprints]
    seen = 0
    with at_rest(*models):
        for batch in batches:
            found = []
            for model, own in zip(models, taps, strict=True):
                with Recorder(model, own) as recorder:
                    feed(model, batch, seen)
                found.append(_by_space(recorder.found, own))
            yield found
            seen += 1
    if not seen:
        raise DataError("the data holds no batch: activations need at least one")


def _by_space(found: dict[Use, Tensor], taps: Sequence[Tap]) -> dict[tuple[str, Use], Tensor]:
    uses: dict[tuple[str, str], list[Use]] = {}
    for use in found:
        uses.setdefault(use[:2], []).append(use)
    return {
        (tap.space, use): found[use][:, torch.from_numpy(tap.index).to(found[use].device)].float()
        for tap in taps
        for use in uses.get((tap.weight, tap.role), ())
    }
