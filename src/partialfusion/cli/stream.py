"""`partialfusion fuse hf:A hf:B`: directories of Hugging Face that are fused without ever being in memory whole."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import OptionError
from .parse import example_inputs, parse_dtype, parse_fractions, parse_mix, parse_output, parse_round_to
from .terminal import print_json, working

if TYPE_CHECKING:
    from ..streaming.fuse import FusedFiles

PREFIX = "hf:"
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
# Options that need the models in memory, with the values that ask for nothing.
IN_MEMORY: Mapping[str, tuple[Any, ...]] = {
    "data": (None,),
    "budget": (None,),
    "evaluate": (None,),
    "refit": (None, False),
    "ridge": (None,),
    "factories": (None, [], ()),
    "features": ("auto", "weights"),
    "similarity": (None, "auto", "permutation"),
    "masses": ("equal",),
    "norm": ("auto", "analytic"),
}
# Options that the function takes as they are.
SAME = "method", "align", "convention", "cluster", "device", "check", "allow_shortfall"


def are_streamed(factory: str, checkpoints: Sequence[Path]) -> bool:
    """Whether all models are directories, as hf:DIR."""
    return factory.startswith(PREFIX) and all(str(path).startswith(PREFIX) for path in checkpoints)


def fuse_directories(given: Mapping[str, Any]) -> None:
    """Run the command with its options by the names of its parameters."""
    for name, nothing in IN_MEMORY.items():
        if given[name] not in nothing:
            option = {"factories": "factory"}.get(name, name)
            raise OptionError(
                f"--{option} needs the models in memory, and hf:A hf:B are streamed from their files: leave it out, or "
                "name the checkpoints as directories (fuse hf:A A B …), which loads them"
            )
    with working(not given["quiet"]) as report:
        report("starting PyTorch", 0.0)
        from ..streaming.fuse import fuse_files

        directories = [str(path).removeprefix(PREFIX) for path in (given["factory"], *given["checkpoints"])]
        result = fuse_files(
            directories,
            given["out"],
            example_inputs(given["inputs"], given["seed"]) if given["inputs"] else None,
            output=parse_output(given["output"]),
            alpha=parse_fractions("--alpha", given["alpha"]),
            mix=parse_mix(given["mix"], None),  # type: ignore[arg-type]
            round_to=parse_round_to(given["round_to"]),
            dtype=parse_dtype(given["dtype"]),
            shard_size=parse_size(given["shard_size"]),
            progress=report,
            **{name: given[name] for name in SAME},
            seed=given["seed"],
        )
    _show(result, as_json=given["as_json"], quiet=given["quiet"])


def parse_size(text: str) -> int:
    """Bytes from text such as 500MB or 2GB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]B)?\s*", text, re.IGNORECASE)
    size = int(float(found[1]) * UNITS[(found[2] or "").upper()]) if found else 0
    if size < 1:
        raise OptionError(f"--shard-size {text!r} is no size: write it as 500MB or 2GB")
    return size


def _show(result: FusedFiles, *, as_json: bool, quiet: bool) -> None:
    from .output import fusion_record

    if as_json:
        more = {"described": result.described, "kept": result.kept}
        print_json({**fusion_record(result.fusion, result.directory), **more})
    elif not quiet:
        typer.echo(str(result.summary()))
        typer.echo(f"self-check: {result.fusion.blueprint.checked}")
        again = f" ({result.kept} shards of an earlier run were kept)" if result.kept else ""
        typer.echo(f"\nwrote {result.directory}{again}; to load it in Python:\n")
        typer.echo(f"    import partialfusion as pf\n\n    model = pf.from_pretrained({str(result.directory)!r})")
        if result.described:
            typer.echo("\nIts config describes it: transformers loads it by itself, too.")
