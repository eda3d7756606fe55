"""A stored fusion opened again: with its plan alone, or with its sources as `fuse` returned it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..blueprint import Blueprint, Space, trace_labels
from ..core.alone import alone
from ..core.inputs import Inputs, Output
from ..core.plain import holding
from ..core.scalars import check_flag, check_seed
from ..core.text import shorten
from ..errors import CheckpointError, MismatchError, OptionError
from ..fusing.conform import conformed
from ..fusing.methods import PruningMethod
from ..fusing.options import PRUNING, Recipe
from ..fusing.prepare import traced
from ..fusing.result import Fusion
from ..kernels import Plan
from ..rotation import rotatable
from ..surgery import AppliedPlan, SurgeryResult, count
from ..surgery.apply import layout_of
from ..surgery.config import follow_config
from .digest import state_digest
from .files import StrPath
from .header import Stored, damaged
from .storage import inspect, load


@dataclass(frozen=True, eq=False)
class OpenedFusion:
    """A fused model from a file, with the plan and the layout that `to_blocks` needs."""

    model: nn.Module
    plan: Plan
    layout: Mapping[str, Space]


@alone
def open_stored(path: StrPath, into: nn.Module, example_inputs: Any, *, output: Output | None = None) -> OpenedFusion:
    """The fused model of a file and where its channels are, without its sources.

    Args:
        path: a file that `save` wrote.
        into: an instance of the class that was fused, with any widths; it is not changed.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs.
        output: which entry of the model's output is the result, as it was for `fuse`.
    """
    inputs = Inputs.of(example_inputs, output)
    stored, model = inspect(path), load(path, into=into)
    plan, blueprint = stored.plan, trace_labels(holding(into, stored.packings), inputs)
    check_spaces(plan, [blueprint], path)
    return OpenedFusion(model, plan, layout_of(model, blueprint, plan, inputs))


@alone
def restore(
    path: StrPath,
    models: Sequence[nn.Module],
    example_inputs: Any,
    *,
    output: Output | None = None,
    check: bool = True,
) -> Fusion:
    """A stored fusion with its sources, as `fuse` or `prune` returned it: to refit it, or to hold it as blocks.

    Args:
        path: a file that `save` wrote.
        models: the models that were fused, in the same order; for a pruned model, a list with that model.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs.
        output: which entry of the model's output is the result, as it was for `fuse`.
        check: verify the blueprint, as `fuse` does.
    """
    check = check_flag(check, "check")
    if isinstance(models, nn.Module) or not isinstance(models, Sequence):
        raise OptionError("models must be a list of the models that were fused, in the same order")
    inputs, stored = Inputs.of(example_inputs, output), inspect(path)
    models = [holding(m, stored.packings) if isinstance(m, nn.Module) else m for m in models]
    _check_sources(stored, models, path)
    recipe = _recipe(stored.recipe, path)
    blueprint = traced(models[-1], inputs, check=check, seed=recipe.seed, untie=False)
    blueprints = conformed(models, blueprint, inputs)
    check_spaces(stored.plan, blueprints, path)
    equivalents = list(models)
    if recipe.similarity == "rotation":
        equivalents, blueprints = _rotated(stored, models, blueprints, inputs, path)
    model = load(path, into=models[-1])
    follow_config(model, models[-1], inputs)
    layout = layout_of(model, blueprint, stored.plan, inputs)
    plan = AppliedPlan.of(stored.plan, layout)
    counted = count(SurgeryResult(model, plan), models[-1])
    return Fusion(
        model,
        plan,
        tuple(blueprints),
        recipe,
        counted,
        tuple(models),
        inputs.signature,
        rotations=stored.rotations,
        equivalents=tuple(equivalents),
    )


def _rotated(
    stored: Stored, models: Sequence[nn.Module], blueprints: Sequence[Blueprint], inputs: Inputs, path: StrPath
) -> tuple[list[nn.Module], list[Blueprint]]:
    """The models rotated as they were before they were fused, and their blueprints."""
    rotations = stored.rotations
    if rotations is None:
        raise CheckpointError(
            f"{path} was made of rotated models by partialfusion {stored.version}, which left out the rotations: use "
            "pf.load for the model in it, or fuse again"
        )
    free = rotatable(models, blueprints, inputs)
    if not set(rotations.spaces) <= set(free.spaces):
        raise MismatchError(
            f"{path} was made of models in which {shorten(sorted(set(rotations.spaces) - set(free.spaces)))} may be "
            "rotated, and in these it may not: pass the models that were fused"
        )
    for space, rotation in ((s, r) for turns in rotations.turns for s, r in turns.items() if s in free.rotary):
        if rotation.shape[-1] != free.rotary[space].size:
            raise CheckpointError(
                f"{path} is damaged: it rotates {rotation.shape[-1]} channels of every head of {space}, of which "
                f"{free.rotary[space].size} may be rotated"
            )
    folded = [free.folded(m, b, uncentred=rotations.uncentred) for m, b in zip(models, blueprints, strict=True)]
    return folded, list(free.turned(folded, blueprints, rotations))


def _check_sources(stored: Stored, models: Sequence[nn.Module], path: StrPath) -> None:
    if len(models) != stored.plan.models:
        raise MismatchError(
            f"{path} was made of {stored.plan.models} model(s) and {len(models)} are given: pass all of them, in the "
            "same order"
        )
    hashes = [state_digest(m) for m in models]
    known = [s.sha256 for s in stored.sources]
    for k, (source, found) in enumerate(zip(stored.sources, hashes, strict=False)):
        if found != source.sha256:
            reason = f"it is number {known.index(found)}" if found in known else "its weights differ"
            raise MismatchError(
                f"models[{k}] is not number {k} of the models that {path} was made of ({source.model}): {reason}; pass "
                "the models that were fused, in the same order"
            )


def check_spaces(plan: Plan, blueprints: Sequence[Blueprint], path: StrPath) -> None:
    """The plan must have the spaces of the models, and their widths if the blueprints of all models are known."""
    spaces = blueprints[-1].by_name
    if plan.keys() != spaces.keys():
        name = min(plan.keys() ^ spaces.keys())
        where = "the file" if name in plan else "the model"
        raise MismatchError(
            f"{path} does not fit the model: the space {name} is only in {where}; pass a model of the class that was "
            "fused"
        )
    if len(blueprints) < plan.models:
        return
    for name in spaces:
        widths = tuple(b[name].width for b in blueprints)
        stored = tuple(pair.sources for pair in plan[name].pairs)
        if widths != stored:
            raise MismatchError(
                f"the space {name} has widths {stored} in {path} and {widths} in the models: pass the models that were "
                "fused"
            )


def _recipe(record: Mapping[str, Any], path: StrPath) -> Recipe:
    """The recipe in a header; the settings of a pruning method are restored, a solver object of the user's is not."""
    known = {f.name for f in fields(Recipe)} - {"otherwise"}
    values = {name: value for name, value in record.items() if name in known}
    try:
        pruning: PruningMethod | None = PRUNING.get(values["method"])
        if pruning is not None and isinstance(values.get("pruning"), Mapping):
            pruning = replace(pruning, **values["pruning"])  # type: ignore[type-var]
        seed, mix = check_seed(values["seed"]), tuple(float(share) for share in values["mix"])
        return Recipe(**{**values, "seed": seed, "mix": mix, "pruning": pruning})
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            damaged(Path(path), f"its recipe makes no sense ({type(error).__name__}: {error})")
        ) from error
