"""The keys of a recipe: the options of the command line and the keyword arguments of the Python API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ...core.literals import (
    Align,
    Basis,
    Convention,
    Features,
    Masses,
    MethodName,
    NormRule,
    PruningName,
    Refit,
    RoundTo,
    Site,
    Zeros,
)
from ...errors import FusionError, OptionError, RecipeError
from ...fusing.options import PRUNING
from ...fusing.validation import check_mix
from ...io.storage import NARROW
from ..data import is_function
from ..jobs import Job, Model
from ..parse import BOUNDS, parse_bound, parse_shape
from .nodes import (
    Document,
    Fields,
    NodeError,
    Parser,
    choice,
    entries,
    file,
    flag,
    lacks,
    line,
    many,
    number,
    text,
    whole,
)

FUSE_ONLY, PRUNE_ONLY = (
    ("alpha", "mix", "align", "masses", "evaluate", "zeros"),
    ("keep",),
)  # keys for several models, and for one
MODEL: dict[str, Parser] = {"factory": text, "checkpoint": file}
OPTIONS = (
    *("alpha", "keep", "mix", "method", "features", "site", "similarity", "align", "masses", "norm", "refit"),
    *("zeros", "round_to", "convention", "check", "allow_shortfall", "device"),
)


def read_recipe(path: Path) -> tuple[Job, dict[str, int]]:
    """The job that a recipe describes; raises RecipeError with every error and its line.

    Returns:
        The job, and the lines for `located`.
    """
    document = Document(path)
    known: dict[str, Parser] = {
        "models": many(_anything),
        "factory": text,
        "input": _shapes,
        "result": _entry,
        "method": _method,
        "alpha": _fractions(-1.0 + 1e-9, 1.0, "from 0 (one model's widths) to 1 (the ensemble), or below 0 (smaller)"),
        "keep": _fractions(1e-9, 1.0, "above 0, up to 1 (all channels)"),
        "budget": _budget,
        "round_to": _round_to,
        "mix": _mix,
        "evaluate": _evaluate,
        "features": choice(*get_args(Features)),
        "site": choice(*get_args(Site)),
        "similarity": choice(*get_args(Basis)),
        "align": choice(*get_args(Align)),
        "masses": choice(*get_args(Masses)),
        "norm": choice(*get_args(NormRule)),
        "convention": choice(*get_args(Convention)),
        "data": file,
        "batch": whole(1),
        "refit": _refit,
        "zeros": choice(*get_args(Zeros)),
        "check": flag,
        "allow_shortfall": flag,
        "device": text,
        "seed": whole(0),
        "output": text,
        "dtype": choice(*(str(dtype).removeprefix("torch.") for dtype in NARROW)),
    }
    found = document.fields(document.root, known, what="the recipe")
    for key in ("models", "input", "output"):
        if lacks(document.root, key, known) and not (key == "input" and "data" in found):
            remedy = "; give it, or data, whose first samples then serve" if key == "input" else ""
            document.report(document.root, f"the key {key!r} is missing{remedy}")
    models, places = _models(document, found)
    _check_size(document, found, len(models))
    document.finish()
    lines = {key: line(node) for key, (_, node) in found.items()} | places
    lines |= {str(found[key][0]): line(found[key][1]) for key in ("data", "evaluate", "output") if key in found}
    lines |= {"output=": line(found["result"][1])} if "result" in found else {}
    lines |= {"the budget": line(found["budget"][1])} if "budget" in found else {}
    return replace(_job(found, models), recipe=path), lines


def located(error: FusionError, path: Path, lines: Mapping[str, int]) -> FusionError:
    """An error of the library with the line of the recipe that it is about; unchanged where there is none.

    Messages of the library start with the option, the file, the factory or the model that they are about.

    Args:
        error: an error raised while the recipe was run.
        path: file of the recipe.
        lines: what a message may start with → the line of the recipe.
    """
    message = str(error)
    starts = [start for start in lines if message.startswith(start)]
    if isinstance(error, RecipeError) or not starts:
        return error
    return RecipeError([f"{path}:{lines[max(starts, key=len)]}: {message}"])


def _job(found: Fields, models: list[Model]) -> Job:
    value = {key: given for key, (given, _) in found.items()}
    return Job(
        models=tuple(models),
        inputs=tuple(value.get("input", ())),
        options={key: value[key] for key in OPTIONS if key in value} | {"output": value.get("result")},
        out=Path(value["output"]),
        data=value.get("data"),
        batch=value.get("batch", 64),
        budget=value.get("budget"),
        evaluate=value.get("evaluate"),
        dtype=value.get("dtype"),
        seed=value.get("seed", 0),
        prune=len(models) == 1,
    )


def _models(document: Document, found: Fields) -> tuple[list[Model], dict[str, int]]:
    """The models, and the lines for messages that start with them."""
    models: list[Model] = []
    places: dict[str, int] = {}
    shared = found.get("factory", (None, None))[0]
    for k, node in enumerate(found.get("models", ([], None))[0]):
        entry = document.fields(node, MODEL, what="a model")
        factory = entry["factory"][0] if "factory" in entry else shared
        if factory is None and lacks(node, "factory", MODEL):
            document.report(
                node, "a model needs a factory: give it here, or one for all models at the top of the recipe"
            )
        if lacks(node, "checkpoint", MODEL):
            document.report(node, "a model needs a checkpoint: the file with its weights")
        if factory is not None and "checkpoint" in entry:
            models.append(Model(factory, entry["checkpoint"][0]))
            at = line(entry["factory"][1]) if "factory" in entry else line(found["factory"][1])
            places |= {f"models[{k}]": line(node), f"factory {factory!r}": at}
            places[str(entry["checkpoint"][0])] = line(entry["checkpoint"][1])
    return models, places


def _check_size(document: Document, found: Fields, models: int) -> None:
    """Check what must hold between keys."""
    one = len(found.get("models", ([], None))[0]) == 1
    for key in FUSE_ONLY if one else PRUNE_ONLY:
        if key in found:
            remedy = "one model is pruned: give keep" if one else "several models are fused: give alpha"
            document.report(found[key][1], f"{key}: {remedy} instead")
    if one and "method" in found and _name(found["method"][0]) not in get_args(PruningName):
        document.report(
            found["method"][1], f"method: one model is pruned: choose from {', '.join(get_args(PruningName))}"
        )
    for size in ("alpha", "keep"):
        if size in found and "budget" in found:
            document.report(found["budget"][1], f"budget: {size} and budget exclude each other; leave one of them out")
    if "batch" in found and not {"data", "evaluate"} & found.keys():
        document.report(found["batch"][1], "batch: there is no data to split; give data: FILE")
    _check_mix(document, found, 0 if one else models)


def _check_mix(document: Document, found: Fields, models: int) -> None:
    """Check the shares of the models; auto needs evaluate, and nothing else uses it."""
    shares, node = found.get("mix", (None, None))
    if shares == "auto" and lacks(document.root, "evaluate", {}):
        document.report(
            node, "mix: auto needs data or a function to choose by; give evaluate: FILE or package.module:function"
        )
    elif shares != "auto" and "evaluate" in found:
        document.report(found["evaluate"][1], "evaluate: it is only used by mix: auto; give that, or leave it out")
    elif shares not in (None, "auto") and models:
        try:
            check_mix(shares, models)
        except OptionError as error:
            document.report(node, str(error))


def _round_to(node: Node) -> RoundTo:
    """ "auto", or a number of channels."""
    return "auto" if isinstance(node, ScalarNode) and node.value == "auto" else whole(1)(node)


def _budget(node: Node) -> dict[str, float | int]:
    """A number, which bounds the dense parameters, or bounds by name."""
    if not isinstance(node, MappingNode) or not node.value:
        return {BOUNDS[0]: _bound(node)}
    given = entries(node)
    for name, (key, _) in given.items():
        if name not in BOUNDS:
            raise NodeError(key, f"{name!r} cannot be bounded, only {', '.join(BOUNDS)} can")
    return {name: _bound(value) for name, (_, value) in given.items()}


def _bound(node: Node) -> float | int:
    number(node)
    try:
        return parse_bound(str(node.value))
    except OptionError as error:
        raise NodeError(node, str(error)) from None


def _mix(node: Node) -> list[float] | float | str:
    if isinstance(node, ScalarNode):
        return "auto" if node.value == "auto" else number(node)
    return many(number)(node)


def _evaluate(node: Node) -> str:
    """An existing file, or the name of a function."""
    return text(node) if is_function(text(node)) else str(file(node))


def _anything(node: Node) -> Node:
    return node


def _shapes(node: Node) -> list[str]:
    """One shape, as a string or a list of numbers; or a list of shapes, one for each input."""
    if isinstance(node, SequenceNode) and node.value and not all(_is_number(item) for item in node.value):
        return [_shape(item) for item in node.value]
    return [_shape(node)]


def _shape(node: Node) -> str:
    if isinstance(node, SequenceNode):
        spec = ",".join(str(size) for size in many(whole(1))(node))
    else:
        spec = str(node.value) if _is_number(node) else text(node)
    try:
        parse_shape(spec, "shape")
    except OptionError as error:
        raise NodeError(node, str(error)) from None
    return spec


def _entry(node: Node) -> str | int:
    """The name of an entry of the model's output, or its position."""
    return whole(0)(node) if _is_number(node) else text(node)


def _is_number(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag.endswith((":int", ":float"))


def _fractions(low: float, high: float, allowed: str) -> Callable[[Node], float | dict[str, float]]:
    """A number, or numbers by patterns of space names."""

    def one(node: Node) -> float:
        value = number(node)
        if not low <= value <= high:
            raise NodeError(node, f"{value:g} is out of range: it is a fraction, {allowed}")
        return value

    def parse(node: Node) -> float | dict[str, float]:
        if isinstance(node, MappingNode) and node.value:
            return {name: one(value) for name, (_, value) in entries(node).items()}
        return one(node)

    return parse


def _refit(node: Node) -> Refit:
    if isinstance(node, ScalarNode) and node.tag.endswith(":bool"):
        return flag(node)
    if isinstance(node, ScalarNode) and node.value == "auto":
        return "auto"
    value = number(node)
    if value <= 0:
        raise NodeError(node, "expected true, false, auto, or the strength of the ridge, a number above 0")
    return value


def _method(node: Node) -> Any:
    """A name, or a name with the settings of a pruning method."""
    if not isinstance(node, MappingNode):
        return choice(*get_args(MethodName))(node)
    given = {name: value for name, (_, value) in entries(node).items()}
    if "name" not in given:
        raise NodeError(node, "a method with settings needs a name, such as name: cluster")
    plain = PRUNING[choice(*PRUNING)(given.pop("name"))]
    known = [f.name for f in fields(plain)]  # type: ignore[arg-type]
    values = {}
    for key, value in given.items():
        if key not in known:
            raise NodeError(value, f"{plain.name} has no setting {key!r}; it has {', '.join(known)}")
        values[key] = _setting(value)
    try:
        return replace(plain, **values)  # type: ignore[type-var]
    except (OptionError, TypeError, ValueError) as error:
        raise NodeError(node, str(error)) from None


def _setting(node: Node) -> bool | int | float | str:
    if not isinstance(node, ScalarNode):
        raise NodeError(node, "expected a single value")
    if node.tag.endswith(":bool"):
        return flag(node)
    if _is_number(node):
        value = number(node)
        return int(value) if value == int(value) else value
    return text(node)


def _name(method: Any) -> str:
    return method if isinstance(method, str) else str(method.name)
