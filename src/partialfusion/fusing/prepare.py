"""Models as the library works on them: traced, weights that are computed made plain, shared weights taken apart."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ..blueprint import Blueprint, trace_labels
from ..core.inputs import Inputs
from ..core.modules import canonical_names, named_tensors
from ..core.plain import holding, plain
from ..core.progress import ProgressCallback, silent
from ..core.same_code import Code
from ..surgery import verify
from .validation import check_tensors


def traced(
    model: nn.Module,
    inputs: Inputs,
    *,
    check: bool,
    seed: int,
    untie: bool = True,
    progress: ProgressCallback = silent,
) -> Blueprint:
    """The blueprint of a model, verified on numbers unless `check` is False.

    Args:
        model: the model.
        inputs: example inputs.
        check: verify it on numbers.
        seed: random seed of the check.
        untie: take weights apart that modules share, where their spaces could not change width otherwise.
        progress: called with what is being done and the fraction that is done.
    """
    progress("tracing", 0.0)
    check_tensors(model, "the model")
    model = plain(model)
    blueprint = trace_labels(model, inputs)
    first = canonical_names(model)
    apart = [name for name in first if name != first[name] and first[name] in blueprint.shared]
    if untie and apart:
        model = holding(model, {*blueprint.shapes, *apart})
        blueprint = trace_labels(model, inputs)
    blueprint = replace(blueprint, code=Code(model))
    return verify(model, inputs, blueprint, seed, progress) if check else blueprint


def changes_of(given: nn.Module, held: nn.Module) -> tuple[str, ...]:
    """How the model that is resized differs from the one that was given."""
    first, names = canonical_names(given), set(named_tensors(held))
    apart = [f"{name} is no longer tied to {first[name]}" for name in first if name != first[name] and name in names]
    others = [type(m) for m in given.modules()] != [type(m) for m in held.modules()]
    if others or not set(named_tensors(given)) <= names:
        apart.append(
            "weights that are computed (weight norm, standardised or masked weights) are plain ones in the result"
        )
    return tuple(apart)
