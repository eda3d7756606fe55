"""`partialfusion prune`: one model becomes a smaller one."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as opt
from .jobs import Job, Model, run_job, show
from .parse import parse_budget, parse_fractions, parse_output, parse_refit, parse_round_to
from .root import app, examples
from .terminal import guarded, working


@app.command(
    epilog=examples(
        "prune nets:resnet a.pt --input 1,3,32,32 --keep 0.5 \\\n    --out small.safetensors",
        "prune nets:resnet a.pt --input 1,3,32,32 \\\n    --budget params=0.5,flops=0.4 --out small.safetensors",
        "prune nets:resnet a.pt --input 1,3,32,32 --keep 'layer4*=0.25' \\\n"
        "    --data images.npy --refit --out small.safetensors",
    )
)
@guarded
def prune(
    factory: opt.Factory,
    checkpoint: opt.Checkpoint,
    out: opt.Out,
    inputs: opt.InputsOrData = None,
    output: opt.Output = None,
    keep: opt.Keep = None,
    budget: opt.Budget = None,
    round_to: opt.RoundTo = "auto",
    method: Annotated[
        str,
        typer.Option(
            help="Pruning method: auto (with data the nearer of interpolate and cluster, refitted; cluster without), "
            "cluster, interpolate, zip, magnitude or magnitude+ot."
        ),
    ] = "cluster",
    features: opt.Features = "auto",
    site: opt.Site = "auto",
    similarity: opt.Similarity = None,
    data: opt.Data = None,
    batch: opt.Batch = 64,
    norm: opt.Norm = "auto",
    refit: opt.Refit = None,
    ridge: opt.Ridge = None,
    convention: opt.Convention = "value",
    check: opt.Check = True,
    allow_shortfall: opt.AllowShortfall = False,
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compress one checkpoint: channels are kept, merged with others that respond alike, or removed."""
    job = Job(
        models=(Model(factory, checkpoint),),
        inputs=tuple(inputs or ()),
        options={
            "keep": parse_fractions("--keep", keep),
            "round_to": parse_round_to(round_to),
            "method": method,
            "features": features,
            "site": site,
            "similarity": similarity,
            "norm": norm,
            "refit": parse_refit(refit, ridge),
            "convention": convention,
            "output": parse_output(output),
            "check": check,
            "allow_shortfall": allow_shortfall,
            "device": device,
        },
        out=out,
        data=data,
        batch=batch,
        budget=parse_budget(budget),
        dtype=dtype,
        seed=seed,
        prune=True,
    )
    with working(not quiet) as report:
        result = run_job(job, report)
    show(result, job, as_json=as_json, quiet=quiet)
