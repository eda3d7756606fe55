"""Fine-tuning at constant size: the zero blocks of a fused model stay zero."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from ..blueprint import Space
from ..core.modules import named_tensors
from ..core.text import shorten
from ..errors import MismatchError, OptionError
from ..io.header import Stored, filled_by_refit
from ..kernels import Plan
from ..surgery import AppliedPlan
from ..surgery.support import ParameterSupport, parameter_supports, zero_mask

if TYPE_CHECKING:
    from ..fusing.result import Fusion

log = logging.getLogger(__name__)


def freeze_zeros(model: nn.Module | Fusion, plan: Plan | Fusion | Stored | None = None) -> FrozenZeros:
    """Keep the zero blocks of a fused model at zero while it trains, so that its effective size does not grow.

    It works in two ways. Gradients are zero there, so that neither their norm nor the moments of an optimiser ever
    see these entries; that alone is enough for every update rule that treats entries one by one. After each step of
    any `torch.optim.Optimizer` that holds a frozen parameter the entries are set to zero again, which also covers
    rules that mix entries or add noise, and moments from before the freeze. A training loop that updates parameters
    by hand with such a rule calls `restore()` after the update.

    The parameters themselves do not change: names and state dict stay the same, and the model can still be moved to
    another device or precision. Hooks belong to the parameter objects, so a deep copy, a model loaded from a file and
    parameters that were replaced (`load_state_dict(assign=True)`) are not frozen: freeze those again.

    Parameters whose zero blocks refitting has filled (`zeros="free"`) have none to freeze: they train as a whole, and a
    warning names them.

    Args:
        model: the fused model, a copy of it, or a model with its shapes and weights; or the result of the fusion,
            which includes the plan.
        plan: the result of the fusion, or its plan; for a model from a file, `inspect(path)`.

    Returns:
        A handle: `remove()` lets the zeros change again. As a context manager it removes itself at the end.
    """
    if not isinstance(model, nn.Module):
        plan, model = model, model.model
    model = _unwrapped(model)
    parameters = dict(model.named_parameters())
    masks = _stored_zeros(parameters, plan) if isinstance(plan, Stored) else _planned_zeros(model, parameters, plan)
    if _were_filled(plan):
        full = [name for name, mask in masks.items() if _numbers(parameters[name], mask)]
        masks = {name: mask for name, mask in masks.items() if name not in full}
        log.warning(
            "refitting filled zero blocks%s: there is nothing to freeze in them; zeros='kept' leaves them at zero",
            f" of {shorten(full)}" if full else "",
        )
    for name, mask in masks.items():
        _check_zero(name, parameters[name], mask)
    return FrozenZeros([(parameters[name], mask) for name, mask in masks.items()])


def _were_filled(given: Plan | Fusion | Stored | None) -> bool:
    """Whether refitting was free to fill the zero blocks, as far as what was given can tell."""
    recipe = getattr(given, "recipe", None)
    if recipe is None:
        return False
    return filled_by_refit(recipe if isinstance(recipe, Mapping) else asdict(recipe))


def _planned_zeros(
    model: nn.Module, parameters: Mapping[str, Tensor], given: Plan | Fusion | None
) -> dict[str, Tensor]:
    plan = getattr(given, "plan", given)
    if not isinstance(plan, AppliedPlan):
        raise OptionError(
            "freeze_zeros needs to know where the channels are in the fused model: pass the result of the fusion or "
            "its plan (result.plan), or inspect(path) for a model from a file"
        )
    _check_names(model, plan.layout)
    return zero_blocks(parameters, plan, plan.layout)


def _stored_zeros(parameters: Mapping[str, Tensor], stored: Stored) -> dict[str, Tensor]:
    for name, how in stored.packings.items():
        if name in parameters and tuple(parameters[name].shape) != how.shape:
            raise MismatchError(
                f"{name} has shape {tuple(parameters[name].shape)} in the model and {how.shape} in the file: pass the "
                "model that was loaded from it"
            )
    return _masks({name: how.support for name, how in stored.packings.items() if name in parameters and how.support})


def zero_blocks(tensors: Mapping[str, Tensor], plan: Plan, layout: Mapping[str, Space]) -> dict[str, Tensor]:
    """Where a fused model must be zero: the entries whose channels have no model in common.

    Args:
        tensors: name → parameter of the fused model; only shapes matter.
        plan: the plan that made it.
        layout: where the channels of every space are in it.

    Returns:
        Name → boolean mask, true in the zero blocks, with the parameter's shape except for length one along axes
        whose positions all models write; parameters without zero blocks are left out.
    """
    for name, space in layout.items():
        for b in space.bindings:
            shape = tuple(tensors[b.parameter].shape) if b.parameter in tensors else None
            if shape is not None and (len(b.index) != plan[name].width or int(b.index.max()) >= shape[b.axis]):
                raise MismatchError(
                    f"{b.parameter} has shape {shape}, where the plan puts {plan[name].width} channels of {name} on "
                    f"axis {b.axis}: pass the fused model with its own plan"
                )
    return _masks(parameter_supports({name: tuple(t.shape) for name, t in tensors.items()}, layout, plan))


def _masks(supports: Mapping[str, ParameterSupport]) -> dict[str, Tensor]:
    masks = {name: torch.from_numpy(zero_mask(s)) for name, s in supports.items() if any(t is not None for t in s)}
    return {name: mask for name, mask in masks.items() if bool(mask.any())}


def _check_names(model: nn.Module, layout: Mapping[str, Space]) -> None:
    known = named_tensors(model)
    missing = sorted({b.parameter for space in layout.values() for b in space.bindings if b.parameter not in known})
    if missing:
        raise MismatchError(
            f"the plan does not fit {type(model).__name__}, which has no {shorten(missing)}: pass the "
            "fused model with its own plan"
        )


def _numbers(parameter: Tensor, mask: Tensor) -> int:
    """How many entries under a mask are not zero."""
    return 0 if parameter.is_meta else int((parameter.detach() != 0).logical_and(mask.to(parameter.device)).sum())


def _check_zero(name: str, parameter: Tensor, mask: Tensor) -> None:
    wrong = _numbers(parameter, mask)
    if wrong:
        raise MismatchError(
            f"{name} {tuple(parameter.shape)} holds {wrong} numbers where the plan leaves zeros: the plan is of "
            "another fusion, or the model was trained without freeze_zeros; freeze it before training, and pass the "
            "result instead of its plan where refitting filled the zero blocks"
        )


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module inside the wrappers of torch.compile and data parallelism, whose names the plan uses."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if inner is None:
            return model
        model = inner


class _Block:
    """The zero blocks of one parameter; the mask follows it to other devices."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def on(self, device: torch.device) -> Tensor:
        if self.mask.device != device:
            self.mask = self.mask.to(device)
        return self.mask


class FrozenZeros:
    """Zero blocks that are kept at zero until `remove()`; made by `freeze_zeros`.

    It lives as long as the parameters, whether or not the caller keeps it: their hooks hold a reference to it, and it
    holds weak references to them.
    """

    def __init__(self, parameters: list[tuple[nn.Parameter, Tensor]]) -> None:
        self._blocks = WeakTensorKeyDictionary()
        self._handles: list[RemovableHandle] = []
        for parameter, mask in parameters:
            block = _Block(mask.to(parameter.device))
            self._blocks[parameter] = block
            self._handles.append(_hook(parameter, partial(self._cleared, block)))
            if parameter.grad is not None:
                parameter.grad.masked_fill_(block.on(parameter.grad.device), 0)
        this = weakref.ref(self)

        def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            frozen = this()
            if frozen is not None:
                frozen._clear([p for group in optimizer.param_groups for p in group["params"]])

        if parameters:
            self._handles.append(register_optimizer_step_post_hook(after_step))
            weakref.finalize(self, self._handles[-1].remove)

    def restore(self) -> None:
        """Set the zero blocks to zero now."""
        self._clear(list(self._blocks))

    def remove(self) -> None:
        """Let the zeros change again; a second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> FrozenZeros:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "frozen" if self._handles else "removed"
        return f"FrozenZeros({len(self._blocks)} parameters with zero blocks, {state})"

    def _cleared(self, block: _Block, gradient: Tensor) -> Tensor:
        return gradient.masked_fill(block.on(gradient.device), 0)

    def _clear(self, parameters: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter in parameters:
                block = self._blocks.get(parameter)
                if block is not None:
                    parameter.masked_fill_(block.on(parameter.device), 0)


def _hook(parameter: nn.Parameter, hook: Callable[[Tensor], Tensor]) -> RemovableHandle:
    """A gradient hook, also on a parameter that takes no gradient yet: layers may be unfrozen later."""
    flag = parameter.requires_grad
    parameter.requires_grad_(True)
    handle: RemovableHandle = parameter.register_hook(hook)
    parameter.requires_grad_(flag)
    return handle
