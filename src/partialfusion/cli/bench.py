"""`partialfusion bench`: how fast a fusion of the user's model is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..errors import OptionError
from . import options as opt
from .parse import example_inputs, parse_fractions, parse_output
from .root import app, examples
from .terminal import guarded, print_json, working


@app.command(
    epilog=examples(
        "bench torchvision:resnet18 --input 16,3,64,64 --alpha 0.5",
        "bench nets:resnet fused.safetensors --input 64,3,32,32 --threads 1 --json",
    )
)
@guarded
def bench(
    factory: opt.Factory,
    inputs: opt.Inputs,
    fused: Annotated[
        Path | None,
        typer.Argument(
            metavar="FUSED", help="A file written by fuse or prune. Default: fuse two newly initialised models."
        ),
    ] = None,
    output: opt.Output = None,
    alpha: opt.Alpha = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to measure, in seconds.")] = 10.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of PyTorch threads. Default: PyTorch's choice.")
    ] = None,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
) -> None:
    """Time one model, the ensemble and their fusion, dense and as blocks, in one run on this machine.

    Times depend on shapes, not on weights: no checkpoints are needed.
    """
    alphas = parse_fractions("--alpha", alpha)
    if fused is not None and alphas is not None:
        raise OptionError(
            f"--alpha is for newly initialised models, but {fused} has its own widths: leave one of them out"
        )
    with working() as report:
        report("starting PyTorch", 0.0)
        from .. import api
        from ..blocks.candidates import Fused
        from ..blocks.compare import compare
        from ..io.factories import build
        from ..io.stored import open_stored

        tensors = example_inputs(inputs, seed)
        entry = parse_output(output)
        result: Fused
        if fused is None:
            models = [build(factory, seed=seed + k) for k in range(2)]
            report("fusing", 0.0)
            result = api.fuse(models, tensors, output=entry, alpha=alphas, align="greedy", seed=seed, progress=report)
        else:
            result = open_stored(fused, build(factory, seed=seed), tensors, output=entry)
            models = [build(factory, seed=seed + k) for k in range(result.plan.models)]
        report(f"timing for {seconds:g} s", 0.0)
        with _threads(threads):
            found = compare(models, result, tensors, seconds=seconds)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(str(found))


@contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
