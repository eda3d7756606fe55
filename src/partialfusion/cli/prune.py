"""`partialfusion prune`: one model becomes a smaller one."""

from __future__ import annotations

from typing import Annotated

import typer

from ..terminal import examples, guarded, working
from . import options as opt
from .jobs import Job, Model, Unlabelled, carry_out, show
from .parse import parse_refit, parse_shares
from .root import app


@app.command(
    epilog=examples(
        "prune nets:resnet a.pt --input 1,3,32,32 --keep 0.5 \\\n    --out small.safetensors",
        "prune nets:resnet a.pt --input 1,3,32,32 --keep 'layer4*=0.25' \\\n"
        "    --data images.npy --refit --out small.safetensors",
    )
)
@guarded
def prune(
    factory: opt.Factory,
    checkpoint: opt.Checkpoint,
    inputs: opt.Inputs,
    out: opt.Out,
    keep: opt.Keep = None,
    method: Annotated[str, typer.Option(help="cluster, zip, magnitude or magnitude+ot.")] = "cluster",
    features: opt.Features = "auto",
    site: opt.Site = "auto",
    data: opt.Data = None,
    batch: opt.Batch = 64,
    norm: opt.Norm = "auto",
    refit: opt.Refit = False,
    ridge: opt.Ridge = None,
    convention: opt.Convention = "value",
    check: opt.Check = True,
    dtype: opt.Dtype = None,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compress one checkpoint: channels are kept, combined with others that respond alike, or deleted."""
    shares = parse_shares("--keep", keep)
    job = Job(
        models=(Model(factory, checkpoint),),
        inputs=tuple(inputs),
        options={
            "keep": 0.5 if shares is None else shares,
            "method": method,
            "features": features,
            "site": site,
            "norm": norm,
            "refit": parse_refit(refit, ridge),
            "convention": convention,
            "check": check,
        },
        out=out,
        data=None if data is None else Unlabelled(data, batch),
        dtype=dtype,
        seed=seed,
        prune=True,
    )
    with working(not quiet) as tell:
        result = carry_out(job, tell)
    show(result, job.models[-1].factory, out, as_json=as_json, quiet=quiet)
