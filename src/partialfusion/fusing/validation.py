"""Checks of what the user passes in: one clear error before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..blueprint import Blueprint
from ..core.modules import named_tensors, not_finite
from ..core.scalars import is_number
from ..errors import OptionError


def check_models(models: Sequence[nn.Module]) -> None:
    """Two or more modules whose numbers can be averaged."""
    if isinstance(models, nn.Module) or not isinstance(models, Sequence):
        raise OptionError("models must be a list of two or more modules: pf.fuse([model_a, model_b], …)")
    if len(models) < 2:
        raise OptionError(f"fusing needs two or more models, got {len(models)}")
    for k, model in enumerate(models):
        check_tensors(model, f"models[{k}]")
    _same_types(models)
    devices = {t.device for m in models for t in named_tensors(m).values()}
    if len(devices) > 1:
        found = ", ".join(sorted(map(str, devices)))
        raise OptionError(f"the models are on several devices ({found}): move them to one")


def _same_types(models: Sequence[nn.Module]) -> None:
    *others, last = (named_tensors(m) for m in models)
    for k, tensors in enumerate(others):
        for name, tensor in tensors.items():
            if name in last and tensor.is_floating_point() and tensor.dtype != last[name].dtype:
                raise OptionError(
                    f"{name} is {tensor.dtype} in models[{k}] and {last[name].dtype} in the last model: convert one"
                )


def check_result(result: Any) -> None:
    """What `fuse` or `prune` returned, not the model in it."""
    if not all(hasattr(result, name) for name in ("model", "plan", "layout")):
        raise OptionError(
            f"the result is a {type(result).__name__}: pass what fuse or prune returned, which holds the model and "
            "its plan"
        )


def check_blueprint(blueprint: Any) -> None:
    """What `trace` returned."""
    if not isinstance(blueprint, Blueprint):
        raise OptionError(f"blueprint is a {type(blueprint).__name__}: pass what pf.trace returned, or leave it out")


def check_tensors(model: nn.Module, what: str) -> None:
    """Parameters must be finite real numbers."""
    if not isinstance(model, nn.Module):
        raise OptionError(f"{what} is a {type(model).__name__}, not a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise OptionError(f"{what} is TorchScript, which cannot be traced again: pass the module that it was made of")
    tensors = named_tensors(model)
    if not any(isinstance(t, nn.Parameter) for t in tensors.values()):
        raise OptionError(f"{what} ({type(model).__name__}) has no parameters")
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise OptionError(f"{what}: {name} is not initialised yet; run the model once on real inputs first")
        shape = tuple(tensor.shape)
        if tensor.is_inference():
            raise OptionError(
                f"{what}: {name} {shape} was made in inference mode, where nothing can be trained; pass "
                "copy.deepcopy(model), copied outside of torch.inference_mode()"
            )
        if tensor.is_complex():
            raise OptionError(f"{what}: {name} {shape} is complex; only real parameters can be fused")
        if tensor.is_quantized or (isinstance(tensor, nn.Parameter) and not tensor.is_floating_point()):
            raise OptionError(
                f"{what}: {name} {shape} is quantised ({tensor.dtype}); fuse the original floating-point models and "
                "quantise the result"
            )
        counts = isinstance(tensor, nn.Parameter) or name.endswith(("running_mean", "running_var"))
        if counts and not tensor.is_meta and (bad := not_finite(tensor.detach())):
            raise OptionError(f"{what}: {name} {shape} holds {bad} NaN or infinite values; load a sound checkpoint")
    _check_quantized_modules(model, what)


def _check_quantized_modules(model: nn.Module, what: str) -> None:
    """Quantised modules keep packed weights outside their parameters."""
    for path, module in model.named_modules():
        if "quantized" in type(module).__module__:
            raise OptionError(
                f"{what}: {path} is a quantised {type(module).__name__}; fuse the original floating-point models and "
                "quantise the result"
            )


def check_mix(mix: Sequence[Any] | float | None, models: int) -> tuple[float, ...]:
    """The shares of the models, in their order; a number is the share of the first of two models."""
    if mix is None:
        return (1.0 / models,) * models
    if is_number(mix):
        share = float(mix)  # type: ignore[arg-type]
        if models != 2:
            raise OptionError(
                f"mix={share:g} has one share for {models} models: a number is the share of the first of two models; "
                "give one share for each"
            )
        if not 0.0 <= share <= 1.0:
            raise OptionError(f"mix={share:g} is the share of the first of two models: it must be between 0 and 1")
        return share, 1.0 - share
    assert not isinstance(mix, float)
    try:
        shares = tuple(float(w) for w in mix)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"mix={mix!r} must be a list of numbers, one for each model") from None
    if len(shares) != models:
        raise OptionError(f"mix={list(shares)} has {len(shares)} shares for {models} models")
    if any(not math.isfinite(w) or w < 0 for w in shares) or abs(sum(shares) - 1) > 1e-6:
        raise OptionError(f"mix={list(shares)} must be non-negative and sum to one, its sum is {sum(shares):g}")
    return tuple(w / sum(shares) for w in shares)


def check_alpha(
    alpha: float | Mapping[str, float], blueprint: Blueprint, *, partial: bool, prunes: bool
) -> dict[str, float]:
    """Elastic space → isolated fraction; below 0, how much smaller than the last model it becomes."""
    values = _per_space("alpha", alpha, blueprint, default=0.0)
    for space, value in values.items():
        if not -1.0 < value <= 1.0:
            raise OptionError(
                f"alpha={value} for {space} is out of range: it must be between 0 (fused) and 1 (ensemble), or for "
                "generalised pruning above -1 (nothing is left)"
            )
        if value < 0.0 and not prunes:
            raise OptionError(
                f"alpha={value} for {space} is out of range: this method cannot go below one model's widths, which is "
                "alpha=0; use method='interpolate' or 'cluster' for smaller results"
            )
        if not partial and value not in (0.0, 1.0):
            raise OptionError(
                f"alpha={value} for {space}: this method fuses every channel of a space; use method='partial-ot', or "
                "alpha=1 for spaces to keep apart"
            )
    return values


def check_keep(keep: float | Mapping[str, float], blueprint: Blueprint) -> dict[str, float]:
    """Elastic space → fraction of its channels that is kept."""
    values = _per_space("keep", keep, blueprint, default=1.0)
    for space, value in values.items():
        if not 0.0 < value <= 1.0:
            raise OptionError(
                f"keep={value} for {space} is out of range: it must be above 0 and at most 1 (all channels)"
            )
    return values


def _per_space(
    option: str, given: float | Mapping[str, float], blueprint: Blueprint, *, default: float
) -> dict[str, float]:
    """Elastic space → number, from one number or from patterns, of which the first that matches counts.

    A pattern that matches one space of a group, such as the queries of attention, holds for all of the group.
    """
    elastic = [s.name for s in blueprint if s.kind == "elastic"]
    if not isinstance(given, Mapping):
        return dict.fromkeys(elastic or ["all"], _number(option, given))
    values = dict.fromkeys(elastic, default)
    for pattern in reversed(list(given)):
        if not isinstance(pattern, str):
            raise OptionError(f"{option}: the key {pattern!r} must be a string, the name of a space or a pattern")
        groups = [group for group in blueprint.groups if any(fnmatchcase(s, pattern) for s in group)]
        matched = [s for group in groups for s in group]
        if not matched:
            stiff = [s for s in blueprint if fnmatchcase(s.name, pattern)]
            why = f" ({stiff[0].name} is {stiff[0].kind}: {'; '.join(stiff[0].reasons)})" if stiff else ""
            raise OptionError(
                f"{option}: no elastic space matches {pattern!r}{why}; the elastic spaces are {', '.join(elastic)}"
            )
        values.update(dict.fromkeys(matched, _number(option, given[pattern])))
    return values


def _number(option: str, value: object) -> float:
    if not is_number(value):
        raise OptionError(f"{option}={value!r} must be a number, or a mapping from space names to numbers")
    return float(value)  # type: ignore[arg-type]
