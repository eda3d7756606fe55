"""`partialfusion convert`: write weights as another kind of file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import OptionError
from . import options as opt
from .data import input_files
from .parse import example_inputs, parse_dtype, parse_output
from .root import app, examples
from .terminal import guarded, print_json, working

if TYPE_CHECKING:
    import torch
    from torch import nn

FORMS = ("dense", "blocks")
ONNX = ".onnx"


@app.command(
    epilog=examples(
        "convert nets:resnet fused.safetensors --out dense.safetensors",
        "convert nets:resnet fused.safetensors --form blocks --dtype float16 \\\n    --out half.safetensors",
        "convert nets:resnet tuned.pt --plan fused.safetensors --form blocks \\\n    --out tuned.safetensors",
        "convert nets:resnet fused.safetensors --form blocks --input 1,3,32,32 \\\n    --out fused.onnx",
    )
)
@guarded
def convert(
    factory: opt.Factory,
    checkpoint: opt.Checkpoint,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="File to write: .safetensors, .pt or .onnx.")
    ],
    form: Annotated[
        str, typer.Option(help="dense (all entries) or blocks (only the non-zero blocks of a fusion).")
    ] = "dense",
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FUSED", help="For blocks of a checkpoint trained after fusing: the file written by fuse or prune."
        ),
    ] = None,
    dtype: opt.Dtype = None,
    inputs: opt.MaybeInputs = None,
    output: opt.Output = None,
    check: Annotated[
        bool, typer.Option(help="Run the ONNX model and compare its outputs before it is written.")
    ] = True,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write a checkpoint in another form: dense or blocks; safetensors, torch or ONNX; full or half precision.

    Parameters keep the precision of the factory's model unless --dtype is given; buffers always keep it.
    """
    with working(not quiet) as report:
        report("starting PyTorch", 0.0)
        files = [checkpoint, *([plan] if plan else []), *input_files([factory])]
        narrow = parse_dtype(dtype)
        _check(out, form, inputs or [], files)
        report("loading", 0.0)
        from ..io.factories import build

        model = build(factory, seed=seed)
        if out.suffix == ONNX:
            written = _loaded(model, checkpoint, plan)
            tensors = example_inputs(inputs or [], seed)
            if form == "blocks":
                written = _as_blocks(model, written, _plan_of(checkpoint, plan), tensors, parse_output(output))
            report("exporting", 0.0)
            _export(written, tensors, out, narrow, check)
        else:
            written = _loaded(model, checkpoint, plan)
            report("writing", 0.0)
            _save(written, out, _plan_of(checkpoint, plan) if form == "blocks" else None, narrow)
    parameters = sum(p.numel() for p in written.parameters())
    size = out.stat().st_size
    if as_json:
        print_json({"out": str(out), "form": form, "dtype": dtype, "parameters": parameters, "bytes": size})
    elif not quiet:
        typer.echo(f"wrote {out}: {type(written).__name__}, {form}, {size:,} bytes")


def _check(out: Path, form: str, inputs: list[str], files: list[Path]) -> None:
    """Report problems with the output before anything is loaded."""
    from ..io.checkpoints import check_writable
    from ..io.files import check_target

    if form not in FORMS:
        raise OptionError(f"form={form!r} is not known: choose one of {', '.join(FORMS)}")
    if out.suffix == ONNX:
        check_target(out, suffixes=(ONNX,), keep=files)
        if not inputs:
            raise OptionError("exporting to ONNX runs the model on an example input: give --input SHAPE")
        return
    check_writable(out, keep=files)
    if form == "blocks" and out.suffix != ".safetensors":
        raise OptionError(f"{out}: blocks are stored as .safetensors, or as layers of an {ONNX} file")


def _plan_of(checkpoint: Path, plan: Path | None) -> Path:
    """The file that holds the plan: the one given as --plan, or the checkpoint itself."""
    from ..io.checkpoints import is_stored

    if plan is not None:
        return plan
    if not is_stored(checkpoint):
        raise OptionError(
            f"{checkpoint} does not store its blocks, only .safetensors files written by fuse or prune do: give that "
            "file as --plan FUSED, or leave out --form blocks"
        )
    return checkpoint


def _loaded(model: nn.Module, checkpoint: Path, plan: Path | None) -> nn.Module:
    """The model with the weights of the checkpoint; with --plan it has the widths of that file."""
    from ..io.checkpoints import load_fused, load_into
    from ..io.storage import load

    if plan is None:
        return load_fused(model, checkpoint)
    fused = load(plan, into=model)
    load_into(fused, checkpoint)
    return fused


def _as_blocks(model: nn.Module, fused: nn.Module, plan: Path, inputs: Any, output: str | int | None) -> nn.Module:
    from ..blocks.convert import to_blocks
    from ..io.stored import open_stored

    return to_blocks(replace(open_stored(plan, model, inputs, output=output), model=fused), inputs)


def _export(model: nn.Module, inputs: Any, out: Path, dtype: torch.dtype | None, check: bool) -> None:
    from torch.utils._pytree import tree_map

    from ..io.onnx import export_onnx

    if dtype is not None:
        model = model.to(dtype)
        inputs = tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, inputs)
    export_onnx(model, inputs, out, check=check)


def _save(model: nn.Module, out: Path, plan: Path | None, dtype: torch.dtype | None) -> None:
    """Write blocks with the plan of a file, else a state dict."""
    from ..io.checkpoints import save_state
    from ..io.storage import inspect, resave

    if plan is None:
        save_state(model, out, dtype=dtype)
    else:
        resave(inspect(plan), model, out, dtype=dtype)
