"""A fused model in block form, and back."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from torch import Tensor, nn

from ..blueprint import Space
from ..core.alone import alone
from ..core.inputs import Inputs, run
from ..core.modules import first_line, named_tensors
from ..core.text import shorten
from ..errors import DataError, OptionError
from ..fusing.validation import check_result
from ..kernels import Plan
from ..surgery.config import accept, refuse
from ..surgery.elastic import bisect_failures
from ..surgery.layout import in_channels_last, in_usual_layout
from ..surgery.verify import close
from .candidates import FILLED, Candidate, Fused, Report, Verdict, find_candidates
from .layer import BlockLayer
from .layers import BlockConv
from .timing import TimedLayer
from .whole import whole_times

log = logging.getLogger(__name__)

Mode = Literal["blocks", "auto"]
REPORT = "_block_report"
WHY = "its layers are held as blocks: from_blocks makes them dense"


@alone
def to_blocks(result: Fused, example_inputs: Any = None, *, mode: Mode = "blocks") -> nn.Module:
    """A copy of the fused model whose linear and convolution layers hold and multiply only their non-zero blocks.

    It computes the same outputs, and has `result.count.effective` parameters if every weight with zero blocks belongs
    to such a layer. `block_report(model)` shows what became of each layer.

    A layer stays dense if there is nothing to save, or if replacing it would not be safe: its weight is shared or
    computed, it has hooks, it is a grouped convolution or a part of nn.MultiheadAttention; or, which only example
    inputs can show, the model's code does not call it as a module, or computes something else with the block form.
    Layers whose zero blocks hold numbers, from refitting with `zeros="free"` or from training, stay dense with a
    warning.

    Where there are example inputs and convolutions with zero blocks, a model on a CPU keeps the weights of its
    convolutions in channels-last layout, unless its code depends on the layout: there, blocks cost little more than
    their multiplications.

    Args:
        result: what `fuse` returned; its model is not changed.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs, on which the
            block form is checked.
        mode: "blocks" replaces every layer that has zero blocks. "auto" times both forms of each layer on the example
            inputs and keeps the faster one; then it times the model as a whole, as it was and as it is now, beside the
            sources one by one, keeps the fastest form, and says in a warning and in the report where even that is
            slower than the sources one by one.
    """
    if mode not in get_args(Mode):
        raise OptionError(f"mode={mode!r} is not known; use {' or '.join(map(repr, get_args(Mode)))}")
    if mode == "auto" and example_inputs is None:
        raise OptionError("mode='auto' times the layers on example inputs: pass example_inputs")
    check_result(result)
    on_meta = any(t.is_meta for t in named_tensors(result.model).values())
    inputs = None if example_inputs is None or on_meta else Inputs.of(example_inputs)
    model, candidates = result.model, find_candidates(result)
    if inputs is not None and (mode == "auto" or any(isinstance(c.block, BlockConv) for c in candidates.values())):
        model = in_channels_last(model, inputs)
        if model is not result.model:
            candidates = find_candidates(_LaidOut(model, result.plan, result.layout))
    verdicts = {path: c.verdict for path, c in candidates.items()}
    full = [path for path, verdict in verdicts.items() if verdict.reason == FILLED]
    if full:
        log.warning(
            "%s stay dense: their zero blocks hold numbers; for blocks, refit with zeros='kept' and train with "
            "freeze_zeros",
            shorten(full),
        )
    if inputs is not None:
        verdicts.update(_tried(model, candidates, inputs, timed=mode == "auto"))
    converted = _replaced(model, _forms(candidates, [p for p, c in verdicts.items() if c.blocks]))
    report = Report(verdicts, channels_last=model is not result.model)
    if inputs is not None and mode == "auto":
        converted, report = _fastest(result, model, converted, report, inputs)
    setattr(converted, REPORT, report)
    refuse(converted, WHY)
    return converted


@dataclass(frozen=True)
class _LaidOut:
    """A fused model in another memory layout."""

    model: nn.Module
    plan: Plan
    layout: Mapping[str, Space]


def _fastest(
    result: Fused, laid_out: nn.Module, converted: nn.Module, report: Report, inputs: Inputs
) -> tuple[nn.Module, Report]:
    """The fastest of the dense module, the same in another layout, and with blocks, all timed as wholes."""
    forms = {"dense": result.model, "blocks": converted}
    if laid_out is not result.model:
        forms["dense, channels-last"] = laid_out
    found = whole_times(forms, getattr(result, "sources", ()), inputs)
    best = min(forms, key=lambda form: found.forms[form])
    if best != "blocks":
        converted = _replaced(forms[best], {})
        reason = "the whole model was faster dense"
        dense = {p: replace(v, blocks=False, reason=reason) if v.blocks else v for p, v in report.items()}
        report = Report(dense, channels_last=best != "dense")
    report = replace(report, times=found, form=best)
    if report.slower:
        log.warning("%s", report.comparison)
    return converted, report


def block_report(model: nn.Module) -> Report:
    """What `to_blocks` did with every linear and convolution layer of the model it returned."""
    found = getattr(model, REPORT, None)
    if not isinstance(found, Report):
        raise OptionError(f"{type(model).__name__} has no report: it was not made by to_blocks")
    return found


@alone
def from_blocks(model: nn.Module) -> nn.Module:
    """A copy of a model in block form with dense layers again: the same numbers, and exact zeros outside the blocks."""
    dense = _replaced(model, {m: m.dense() for m in model.modules() if isinstance(m, BlockLayer)})
    report = vars(dense).pop(REPORT, None)
    if report is not None and report.channels_last:
        in_usual_layout(dense)
    accept(dense, WHY)
    return dense


def dense_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a model in block form, under the names and in the shapes of the dense model.

    In block form `<layer>.weight` is kept as `<layer>.blocks.0.weight`, `<layer>.blocks.1.weight`, …; all other names
    are the same. `load_state_dict` of a model in block form accepts either.
    """
    paths = model.named_modules(remove_duplicate=False)
    layers = {f"{path}." if path else "": m for path, m in paths if isinstance(m, BlockLayer)}
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        prefix = next((p for p in layers if name.startswith(p)), None)
        if prefix is not None and f"{prefix}weight" not in state:
            state[f"{prefix}weight"] = layers[prefix].weight.detach()
        if prefix is None or not name.startswith(f"{prefix}blocks."):
            state[name] = tensor
    return state


def _forms(candidates: Mapping[str, Candidate], paths: Sequence[str]) -> dict[nn.Module, BlockLayer]:
    """Dense layer → block form, for the layers at these paths."""
    return {c.layer: c.block for c in (candidates[p] for p in paths) if c.block is not None}


def _tried(model: nn.Module, candidates: Mapping[str, Candidate], inputs: Inputs, *, timed: bool) -> dict[str, Verdict]:
    """Path → verdict for the layers that have a block form, after running them on inputs."""
    try:
        expected = run(model, inputs)
    except Exception as error:
        raise DataError(
            f"{type(model).__name__} does not run on the example inputs of shapes {inputs.shapes}: {first_line(error)}"
        ) from error

    def passes(paths: Sequence[str]) -> bool:
        try:
            return close(run(_replaced(model, _forms(candidates, paths), shared=True), inputs), expected)
        except Exception as error:
            log.debug("%s as blocks: %s", paths, first_line(error))
            return False

    paths = [p for p, c in candidates.items() if c.block is not None]
    unfit = bisect_failures(paths, passes)
    verdicts = {p: replace(candidates[p].verdict, blocks=False, reason="the model needs it dense") for p in unfit}
    kept = _forms(candidates, [p for p in paths if p not in unfit])
    stand_ins = {layer: TimedLayer(layer, block, timed=timed) for layer, block in kept.items()}
    run(_replaced(model, stand_ins, shared=True), inputs)
    for path in paths:
        if path not in unfit:
            verdicts[path] = _judged(candidates[path].verdict, stand_ins[candidates[path].layer])
    return verdicts


def _judged(verdict: Verdict, stand_in: TimedLayer) -> Verdict:
    """The verdict on a layer after the model ran with a stand-in for it."""
    if not stand_in.calls:
        return replace(verdict, blocks=False, reason="the model does not call it as a module")
    if not stand_in.timed:
        return verdict
    faster = stand_in.block_seconds < stand_in.dense_seconds
    return replace(
        verdict,
        blocks=faster,
        reason="blocks were faster" if faster else "dense was faster",
        dense_seconds=stand_in.dense_seconds,
        block_seconds=stand_in.block_seconds,
    )


def _replaced(model: nn.Module, layers: Mapping[nn.Module, nn.Module], *, shared: bool = False) -> nn.Module:
    """A copy of a model with some layers replaced, wherever the model keeps them.

    The copy takes the replacement in place of the layer, so that the weight of the layer is never copied.

    Args:
        model: the model to copy; it is not changed.
        layers: layer → replacement, which becomes part of the copy.
        shared: use the model's own parameters and buffers in the copy, to try it out.
    """
    memo: dict[int, Any] = {id(layer): replacement for layer, replacement in layers.items()}
    if shared:
        memo.update({id(t): t for t in named_tensors(model).values()})
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    if not shared:
        for replacement in layers.values():
            replacement.bias = copy.deepcopy(replacement.bias, memo)
    copied: nn.Module = copy.deepcopy(model, memo)
    return copied
