"""What a result can hold only the average of, and whether it falls short of what was asked for.

The one place that decides what is an error, what a warning, and what a line of the summary. `allow_shortfall=True`
turns the errors into warnings.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..blueprint import Blueprint
from ..core.inputs import Inputs, run
from ..core.literals import Mix
from ..core.modules import named_tensors
from ..core.probes import probes
from ..core.text import shorten
from ..errors import ShortfallError, VerificationError
from ..surgery.verify import HALF, close, deviation, precise

log = logging.getLogger(__name__)

ROUNDED = 2e-2  # what parameters in half precision may differ by, relative to the largest output
LARGE = 0.1  # the part of the parameters above which averaging is worth a warning
ACCEPT = "allow_shortfall=True (--allow-shortfall) accepts it"


@dataclass(frozen=True)
class Averaged:
    """Tensors of the last model that a result can only hold the average of.

    Attributes:
        names: parameters, and statistics of norms.
        share: the part of all parameters that they are.
        why: the reasons.
    """

    names: tuple[str, ...]
    share: float
    why: tuple[str, ...]

    @classmethod
    def of(cls, model: nn.Module, blueprint: Blueprint, *, apart: bool = True) -> Averaged:
        """Those whose channels cannot be kept apart or, where that is not asked for, not even be matched."""
        sizes = {name: p.numel() for name, p in model.named_parameters()}
        names = blueprint.averaged if apart else blueprint.unmatched
        why = dict.fromkeys(reason for name in names for reason in blueprint.why_averaged(name))
        return cls(names, sum(sizes.get(n, 0) for n in names) / sum(sizes.values()), tuple(why))

    def __str__(self) -> str:
        return f"{shorten(self.names)} ({self.share:.1%} of the parameters: {shorten(self.why)})" if self.names else ""


def check_reducible(model: nn.Module, blueprint: Blueprint, *, fuses: bool, allowed: bool) -> None:
    """Raise an error where no channel of a network can be matched, or where one is pruned, none be left out.

    Args:
        model: the last model.
        blueprint: its blueprint.
        fuses: several models are fused, not one pruned.
        allowed: it is only a warning.
    """
    kinds = {space.kind for space in blueprint}
    if kinds & ({"elastic", "permutable"} if fuses else {"elastic"}) or (fuses and not blueprint.averaged):
        return
    why = shorten([f"{s.name}: {'; '.join(s.reasons)}" for s in blueprint if not s.is_output])
    what = (
        "the result would be the plain average: no channels can be matched or kept apart"
        if fuses
        else "nothing can be pruned: no space can change its width"
    )
    text = f"{type(model).__name__}: {what} ({why})" if why else f"{type(model).__name__}: {what}"
    if not allowed:
        cure = "; method='average' asks for just that, and" if fuses else ";"
        raise ShortfallError(f"{text}{cure} {ACCEPT}")
    log.warning("%s", text)


def check_speed(told: str, *, slower: bool, allowed: bool) -> None:
    """Tell of a result over a bound on latency; one that is slower than the models one by one is an error.

    Args:
        told: what was measured, in words.
        slower: the result is slower than the models one by one.
        allowed: that is only a warning.
    """
    if slower and not allowed:
        raise ShortfallError(f"{told}: use the models one by one; {ACCEPT}")
    log.warning("%s", told)


def averaging_note(model: nn.Module, blueprint: Blueprint, *, apart: bool) -> str:
    """What to warn of where a large part of the parameters is only averaged; empty where it is not.

    Args:
        model: the last model.
        blueprint: its blueprint.
        apart: channels were to be kept apart; otherwise they were to be matched.
    """
    found = Averaged.of(model, blueprint, apart=apart)
    if found.share < LARGE:
        return ""
    what = "only averaged, whatever alpha" if apart else "averaged as they stand, with nothing matched"
    return f"{found.share:.1%} of the parameters are {what}: {shorten(found.names)} ({shorten(found.why)})"


def shortfall_of(
    result: nn.Module, models: Sequence[nn.Module], blueprint: Blueprint, inputs: Inputs, mix: Mix, *, allowed: bool
) -> str:
    """What the result misses of the mix of the models' outputs, and why; an empty text where it misses nothing.

    Without numbers, on the meta device, a result may miss something where anything is only averaged or mixed too early.

    Args:
        result: the fused model, with every channel kept apart.
        models: the sources.
        blueprint: of the last of them.
        inputs: example inputs.
        mix: the share of each model.
        allowed: warn of it; otherwise it is an error.
    """
    averaged = Averaged.of(models[-1], blueprint)
    why = [f"only averaged: {averaged}"] if averaged.names else []
    if blueprint.nonlinear_after:
        why.append(f"the models are mixed before {', '.join(blueprint.nonlinear_after)}")
    missed = "the ensemble" if len(models) > 1 else "the model"
    if any(t.is_meta for t in named_tensors(result).values()):
        if not why:
            return ""
        text = f"the result may not be {missed}, which could not be compared without numbers"
    else:
        shown = [inputs, *(x for x, _ in probes(models[-1], inputs, seed=0))]
        gap = max(_gap(result, models, x, mix) for x in shown)
        if not gap:
            return ""
        if not why:
            raise VerificationError(
                "the result at alpha=1 is not the mix of the models' outputs; please report the network that shows this"
            )
        text = f"the result is not {missed}: its outputs differ by {gap:.1g} of the largest"
    text = f"with everything kept apart, {text} ({'; '.join(why)})"
    if not allowed:
        cure = "" if averaged.names else "fuse the networks without what follows their last layer, or "
        raise ShortfallError(f"{'alpha' if len(models) > 1 else 'keep'}=1: {text}; {cure}{ACCEPT}")
    log.warning("%s", text)
    return text


def _gap(result: nn.Module, models: Sequence[nn.Module], inputs: Inputs, mix: Mix) -> float:
    """By how much the outputs differ from the mix of the models', relative to the largest; 0 where that is rounding.

    Half precision rounds so much that a real difference may hide in it: then single precision decides, in which only
    the parameters are rounded.
    """
    found, expected = _outputs(result, models, inputs, mix)
    pairs = list(zip(found, expected, strict=True))
    gap = max((deviation(a, b) for a, b in pairs if not close([a], [b])), default=0.0)
    if gap or all(a.dtype not in HALF or torch.equal(a, b) for a, b in pairs):
        return gap
    (wide, wider), *others = (precise(m, inputs, torch.float32) for m in (result, *models))
    found, expected = _outputs(wide, [m for m, _ in others], wider, mix)
    gap = max((deviation(a, b) for a, b in zip(found, expected, strict=True) if a.dtype not in HALF), default=0.0)
    return gap if gap > ROUNDED else 0.0


def _outputs(
    result: nn.Module, models: Sequence[nn.Module], inputs: Inputs, mix: Mix
) -> tuple[list[Tensor], list[Tensor]]:
    """The numbers that a result returns, and the mix of what the models do."""
    outputs = [run(m, inputs) for m in models]
    found, expected = [], []
    for out, *parts in zip(run(result, inputs), *outputs, strict=True):
        if out.is_floating_point():
            found.append(out)
            mixed = [w * o.to(out.device) for w, o in zip(mix, parts, strict=True)]
            expected.append(torch.stack(mixed).sum(0))
    return found, expected
