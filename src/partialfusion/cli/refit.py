"""`partialfusion refit`: fit a stored fusion to its sources on unlabelled data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from ..core.literals import Zeros
from . import options as opt
from .data import input_files, load_data
from .output import show_fusion
from .parse import factory_per_model, inputs_or_none, parse_dtype, parse_output
from .root import app, examples
from .terminal import guarded, working


@app.command(
    epilog=examples(
        "refit nets:resnet fused.safetensors a.pt b.pt --input 1,3,32,32 \\\n"
        "    --data images.npy --out refitted.safetensors",
        "refit nets:resnet small.safetensors a.pt --input 1,3,32,32 \\\n"
        "    --data images.npz --ridge 0.1 --out refitted.safetensors",
    )
)
@guarded
def refit(
    factory: opt.Factory,
    fused: Annotated[Path, typer.Argument(metavar="FUSED", help="A .safetensors file written by fuse or prune.")],
    sources: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT…", help="The checkpoints it was made from, in the same order.")
    ],
    data: opt.NeededData,
    out: opt.Out,
    inputs: opt.InputsOrData = None,
    factories: opt.Factories = None,
    output: opt.Output = None,
    batch: opt.Batch = 64,
    ridge: opt.Ridge = None,
    zeros: opt.Zeros = "auto",
    check: opt.Check = True,
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Fit a fused or pruned model to what its sources compute, layer by layer and without labels."""
    with working(not quiet) as report:
        report("starting PyTorch", 0.0)
        from .. import api
        from ..core.examples import first_samples
        from ..io.checkpoints import check_writable, load_model, save_fusion
        from ..io.stored import restore
        from ..surgery import RIDGE

        specs = factory_per_model(factory, factories or [], len(sources))
        check_writable(out, keep=[fused, *sources, *input_files(specs, data)])
        narrow = parse_dtype(dtype)
        tensors = inputs_or_none(inputs or (), data, seed)
        batches = load_data(data, batch, tensors)
        assert batches is not None
        report("loading", 0.0)
        models = [load_model(spec, path, seed=seed) for spec, path in zip(specs, sources, strict=True)]
        report("tracing", 0.0)
        examples_of = tensors if tensors is not None else first_samples(batches[0], models[-1])
        result = restore(fused, models, examples_of, output=parse_output(output), check=check)
        result = api.refit(
            result,
            batches,
            ridge=RIDGE if ridge is None else ridge,
            zeros=cast(Zeros, zeros),
            device=device,
            progress=report,
        )
        report("writing", 1.0)
        save_fusion(result, out, dtype=narrow)
    show_fusion(result, specs[-1], out, as_json=as_json, quiet=quiet)
