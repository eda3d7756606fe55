"""`partialfusion trace`: the channel spaces of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Check, Factory, Inputs, Output, Seed
from .output import blueprint_record
from .parse import example_inputs, parse_output
from .root import app, examples
from .terminal import guarded, print_json, working


@app.command(
    epilog=examples(
        "trace torchvision:resnet18 --input 1,3,64,64",
        "trace nets:classifier --input 1,16:int64 --weights model.safetensors --json",
    )
)
@guarded
def trace(
    factory: Factory,
    inputs: Inputs,
    output: Output = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A checkpoint to load into the model first.")
    ] = None,
    check: Check = True,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Print a model's blueprint: its channel spaces, and what writes, reads and scales them."""
    with working() as report:
        report("starting PyTorch", 0.0)
        from .. import api
        from ..io.checkpoints import load_model
        from ..io.factories import build

        tensors = example_inputs(inputs, seed)
        report("loading", 0.0)
        model = build(factory, seed=seed) if weights is None else load_model(factory, weights, seed=seed)
        report("tracing", 0.0)
        blueprint = api.trace(model, tensors, output=parse_output(output), check=check, seed=seed)
    if as_json:
        print_json(blueprint_record(blueprint))
    else:
        typer.echo(str(blueprint))
