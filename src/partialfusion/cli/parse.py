"""Option strings as values: shapes, fractions per space, shares, budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import OptionError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..core.literals import Refit, RoundTo

FILES = (".safetensors", ".pt", ".onnx", ".html", ".htm", ".csv", ".json")  # what names of files end in
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)  # what an example input may be made of
LARGEST = 1 << 28  # numbers in an example input
BOUNDS = ("dense", "params", "flops", "latency", "channels")  # what a budget can limit, a plain number the first


def factory_per_model(first: str, further: Sequence[str], models: int) -> list[str]:
    """One factory per model: the same for all, or the first and one for each model after it."""
    if not further:
        return [first] * models
    if len(further) != models - 1:
        raise OptionError(
            f"--factory is given {len(further)} time(s) for {models} models: FACTORY builds the first, give "
            f"--factory once for each of the other {models - 1}"
        )
    return [first, *further]


def parse_fractions(option: str, given: Sequence[str] | None) -> float | dict[str, float] | None:
    """A number, or numbers by patterns of space names; a number beside patterns is for all other spaces."""
    patterns: dict[str, float] = {}
    numbers: list[float] = []
    for text in given or ():
        pattern, equals, number = text.rpartition("=")
        if equals:
            if pattern in patterns:
                raise OptionError(f"{option} {text}: a number for {pattern!r} is given twice")
            patterns[pattern] = _number(number, f"{option} {text}: ")
        else:
            numbers.append(_number(text, f"{option} {text}: "))
    if len(numbers) > 1:
        raise OptionError(
            f"{option} gives {len(numbers)} numbers for all spaces; write PATTERN=NUMBER for some of them"
        )
    if numbers and "*" in patterns:
        raise OptionError(f"{option} gives a number for all spaces twice, alone and for the pattern '*'")
    if not patterns:
        return numbers[0] if numbers else None
    return {**patterns, "*": numbers[0]} if numbers else patterns


def parse_numbers(option: str, given: str | None) -> list[float] | None:
    """Numbers separated by commas."""
    return None if given is None else [_number(part, f"{option} {given}: ") for part in given.split(",")]


def parse_names(option: str, given: str | None) -> list[str] | None:
    """Names separated by commas."""
    if given is None:
        return None
    found = [part.strip() for part in given.split(",")]
    if not all(found):
        raise OptionError(f"{option} {given}: give names separated by commas, such as a,b")
    return found


def parse_shares(option: str, given: str | None) -> list[float] | float | None:
    """The shares of the models; a single number is the share of the first of two."""
    shares = parse_numbers(option, given)
    return shares[0] if shares is not None and len(shares) == 1 else shares


def parse_mix(given: str | None, evaluate: str | None) -> list[float] | float | Literal["auto"] | None:
    """The shares, or "auto", which needs --evaluate to choose them."""
    if given == "auto":
        if evaluate is None:
            raise OptionError("--mix auto needs labelled data or a function to choose by: add --evaluate FILE|FUNCTION")
        return "auto"
    if evaluate is not None:
        raise OptionError(f"--evaluate {evaluate} is only used by --mix auto: add --mix auto, or leave it out")
    return parse_shares("--mix", given)


def parse_budget(given: str | None) -> dict[str, float | int] | None:
    """Bounds by name, from a string such as 1.3, which bounds the dense parameters, or params=1.3,flops=1.5."""
    if given is None:
        return None
    bounds: dict[str, float | int] = {}
    for part in given.split(","):
        name, equals, number = part.rpartition("=")
        name = name.strip() if equals else BOUNDS[0]
        if name not in BOUNDS:
            raise OptionError(f"--budget {given}: {name!r} cannot be bounded, only {', '.join(BOUNDS)} can")
        if name in bounds:
            raise OptionError(f"--budget {given}: {name} is given twice")
        bounds[name] = parse_bound(number, f"--budget {given}: ")
    return bounds


def parse_bound(text: str, prefix: str = "") -> float | int:
    """A number above 0; an integer stays one, because it may be a count. Errors start with the prefix."""
    value = _number(text, prefix)
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"{prefix}{text!r} must be a number above 0, such as 1.3")
    return int(text) if text.strip().lstrip("+").isdecimal() else value


def parse_refit(wanted: bool | None, ridge: float | None) -> Refit:
    """The value of the library's `refit`, from --refit and --ridge."""
    if ridge is None:
        return "auto" if wanted is None else wanted
    if not wanted:
        raise OptionError(f"--ridge {ridge:g} is for refitting: add --refit")
    return ridge


def parse_round_to(given: str) -> RoundTo:
    """The value of the library's `round_to`: "auto" or a whole number."""
    if given == "auto":
        return "auto"
    if not given.isdecimal() or not 1 <= int(given) <= LARGEST:
        raise OptionError(f"--round-to {given}: give auto, or a whole number of channels from 1 on, such as 16")
    return int(given)


def parse_output(given: str | None) -> str | int | None:
    """The name of an entry of the model's output, or its position."""
    if given is None:
        return None
    if given.endswith(FILES):
        raise OptionError(f"--output {given}: it names an entry of the model's output; the file to write is --out")
    is_position = given.lstrip("-").isdecimal() and len(given) <= 18
    return int(given) if is_position else given


def parse_dtype(given: str | None) -> torch.dtype | None:
    """The type to store parameters in."""
    if given is None:
        return None
    from ..io.storage import NARROW

    known = {str(dtype).removeprefix("torch."): dtype for dtype in NARROW}
    if given not in known:
        raise OptionError(f"dtype={given!r} is not known: choose one of {', '.join(known)}")
    return known[given]


def _number(text: str, prefix: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{prefix}{text!r} is not a number") from None


def parse_shape(spec: str, option: str = "--input") -> tuple[str, list[int], str]:
    """The name of the input, or an empty one, its sizes and the name of its dtype, from a string such as 1,16:int64 or
    input_ids=1,16:int64."""
    keyword, _, shape_and_type = spec.rpartition("=")
    sizes, _, name = shape_and_type.partition(":")
    try:
        shape = [int(size) for size in sizes.split(",")]
    except ValueError:
        shape = []
    if not shape or min(shape) < 1:
        raise OptionError(f"{option} {spec}: a shape is whole numbers separated by commas, such as 1,3,32,32")
    if math.prod(shape) > LARGEST:
        raise OptionError(f"{option} {spec}: an example input has at most {LARGEST} numbers; one sample is enough")
    if "=" in spec and not keyword.isidentifier():
        raise OptionError(f"{option} {spec}: {keyword!r} cannot be the name of an input")
    if name and name not in DTYPES:
        raise OptionError(f"{option} {spec}: {name!r} is not a type of inputs; choose one of {', '.join(DTYPES)}")
    return keyword, shape, name or "float32"


def example_inputs(specs: Sequence[str], seed: int) -> tuple[Tensor, ...] | dict[str, Tensor]:
    """One random input per shape, such as 1,3,32,32 or 1,16:int64; integers are 0 or 1. By name where they have one."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    names, inputs = [], []
    for spec in specs:
        keyword, shape, name = parse_shape(spec)
        names.append(keyword)
        dtype = getattr(torch, name)
        if dtype.is_floating_point or dtype.is_complex:
            inputs.append(torch.randn(shape, generator=generator).to(dtype))
        else:
            inputs.append(torch.randint(2, shape, generator=generator).to(dtype))
    if not any(names):
        return tuple(inputs)
    if not all(names) or len(set(names)) < len(names):
        raise OptionError(f"--input {' --input '.join(specs)}: name every input, each once, or none of them")
    return dict(zip(names, inputs, strict=True))


def inputs_or_none(specs: Sequence[str], data: Path | None, seed: int) -> tuple[Tensor, ...] | dict[str, Tensor] | None:
    """Example inputs of the given shapes; none where the first samples of the data serve instead."""
    if not specs and data is None:
        raise OptionError(
            "there are no inputs to run the model on: give --input SHAPE, or --data FILE, whose first samples then "
            "serve"
        )
    return example_inputs(specs, seed) if specs else None
