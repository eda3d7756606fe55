"""`partialfusion fuse`: checkpoints of one architecture become one model."""

from __future__ import annotations

import typer

from ..errors import OptionError
from . import options as opt
from .jobs import Job, Model, fuse_options, run_job, show
from .parse import factory_per_model, parse_budget
from .root import app, examples
from .stream import are_streamed, fuse_directories
from .terminal import guarded, working


@app.command(
    epilog=examples(
        "fuse nets:resnet a.pt b.pt --input 1,3,32,32 \\\n    --alpha 0.4 --out fused.safetensors",
        "fuse nets:resnet a.pt b.pt c.pt --input 1,3,32,32 --mix 0.2,0.3,0.5 \\\n"
        "    --alpha 0.2 --alpha 'layer4*=0.8' --out fused.safetensors",
        "fuse nets:resnet a.pt b.pt --input 1,3,32,32 --budget 1.3 \\\n"
        "    --mix auto --evaluate validation.npz --out fused.safetensors",
        "fuse nets:small a.pt b.pt --factory nets:large --input 1,3,32,32 \\\n"
        "    --data images.npy --refit --out fused.safetensors",
        "fuse timm:resnet18,num_classes=10 a.safetensors b.safetensors \\\n"
        "    --input 1,3,64,64 --dtype float16 --out fused.safetensors",
        "fuse hf:A hf:B --alpha 0.2 --out fused",
    )
)
@guarded
def fuse(
    ctx: typer.Context,
    factory: opt.Factory,
    checkpoints: opt.Models,
    out: opt.FileOrFolder,
    inputs: opt.InputsOrData = None,
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
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    shard_size: opt.ShardSize = "1GB",
    cluster: opt.Cluster = None,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Fuse checkpoints of one architecture into one model and write its weights.

    The result is of the last model's class; alpha or the budget sets the widths of its layers. Directories of Hugging
    Face, all named as hf:DIR, are never in memory whole, and the output is a directory, too.
    """
    if are_streamed(factory, checkpoints):
        fuse_directories(ctx.params)
        return
    if cluster is not None:
        raise OptionError("--cluster is for directories, all named as hf:DIR, which are streamed")
    factories_ = factory_per_model(factory, factories or [], len(checkpoints))
    job = Job(
        models=tuple(Model(f, path) for f, path in zip(factories_, checkpoints, strict=True)),
        inputs=tuple(inputs or ()),
        options=fuse_options(ctx.params),
        out=out,
        data=data,
        batch=batch,
        budget=parse_budget(budget),
        evaluate=evaluate,
        dtype=dtype,
        seed=seed,
    )
    with working(not quiet) as report:
        result = run_job(job, report)
    show(result, job, as_json=as_json, quiet=quiet)
