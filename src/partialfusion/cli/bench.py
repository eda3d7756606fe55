"""`partialfusion bench`: how fast a fusion of the user's models is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import OptionError
from . import options as opt
from .data import load_data
from .jobs import Job, Model, fuse_options, run_job
from .parse import factory_per_model, inputs_or_none, parse_budget, parse_output
from .root import app, examples
from .terminal import guarded, print_json, working


@app.command(
    epilog=examples(
        "bench torchvision:resnet18 --input 16,3,64,64 --alpha 0.5",
        "bench nets:resnet a.pt b.pt --input 64,3,32,32 --budget 1.3 --data images.npy",
        "bench nets:resnet fused.safetensors --input 64,3,32,32 --threads 1 --json",
    )
)
@guarded
def bench(
    ctx: typer.Context,
    factory: opt.Factory,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FUSED|CHECKPOINT…]",
            help="A file written by fuse or prune, or two or more checkpoints to fuse. Default: fuse two newly "
            "initialised models; times depend on shapes, not on weights.",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="SHAPE",
            help="Shape of the inputs to time, such as 64,3,32,32, or input_ids=1,16:int64 by name. Repeat for each "
            "input. May be left out where --data is a file of one tensor: its first batch then serves.",
        ),
    ] = None,
    output: opt.Output = None,
    factories: opt.Factories = None,
    alpha: opt.Alpha = None,
    budget: opt.Budget = None,
    round_to: opt.RoundTo = "auto",
    mix: opt.Mix = None,
    evaluate: opt.MaybeEvaluate = None,
    method: opt.FuseMethod = "partial-ot",
    features: opt.Features = "auto",
    site: opt.Site = "auto",
    similarity: opt.Similarity = None,
    align: opt.Align = "fixed-point",
    masses: opt.Masses = "equal",
    data: opt.Data = None,
    batch: opt.Batch = 64,
    norm: opt.Norm = "auto",
    refit: opt.Refit = None,
    ridge: opt.Ridge = None,
    zeros: opt.Zeros = "auto",
    convention: opt.Convention = "value",
    check: opt.Check = True,
    allow_shortfall: opt.AllowShortfall = False,
    device: opt.Device = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to measure, in seconds.")] = 10.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of PyTorch threads. Default: PyTorch's choice.")
    ] = None,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
) -> None:
    """Time one model, the ensemble and their fusion, dense and as blocks, in one run on this machine.

    Models and options are those of fuse, but newly initialised models, which have nothing alike, are aligned greedily
    unless --align is given. Nothing is written.
    """
    given = files or []
    stored = given[0] if len(given) == 1 else None
    if stored is not None:
        _check_alone(ctx, stored)
    specs = factory_per_model(factory, factories or [], max(2, len(given)))
    checkpoints: list[Path | None] = [*given] or [None] * len(specs)
    job = Job(
        models=tuple(Model(f, path) for f, path in zip(specs, checkpoints, strict=False)),
        inputs=tuple(inputs or ()),
        options=fuse_options(ctx.params) | ({} if given or _is_given(ctx, "align") else {"align": "greedy"}),
        data=data,
        batch=batch,
        budget=parse_budget(budget),
        evaluate=evaluate,
        seed=seed,
    )
    with working() as report:
        report("starting PyTorch", 0.0)
        from ..blocks.candidates import Fused
        from ..blocks.compare import compare
        from ..io.factories import build
        from ..io.stored import open_stored

        tensors: Any = inputs_or_none(inputs or (), data, seed)
        if tensors is None:
            batches = load_data(data, batch, None)
            assert batches is not None
            tensors = batches[0]
        result: Fused
        if stored is not None:
            result = open_stored(stored, build(factory, seed=seed), tensors, output=parse_output(output))
            models = [build(factory, seed=seed + k) for k in range(result.plan.models)]
        else:
            result = run_job(job, report)
            models = list(result.sources)
        report(f"timing for {seconds:g} s", 0.0)
        with _threads(threads):
            found = compare(models, result, tensors, seconds=seconds)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(str(found))


OWN = ("factory", "inputs", "files", "output", "seconds", "threads", "seed", "as_json")  # options for a stored file


def _check_alone(ctx: typer.Context, stored: Path) -> None:
    """A file that fuse or prune wrote has its own widths, which no option of fuse changes."""
    for name in ctx.params:
        if name not in OWN and _is_given(ctx, name):
            raise OptionError(
                f"--{name.replace('_', '-')} is for models to fuse, but {stored} is fused already: leave one of them "
                "out, or give two or more checkpoints"
            )


def _is_given(ctx: typer.Context, name: str) -> bool:
    """Whether the user gave this option."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
