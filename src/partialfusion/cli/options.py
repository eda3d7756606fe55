"""Arguments and options that commands share: the same name means the same everywhere, and in the Python API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Factory = Annotated[
    str,
    typer.Argument(
        metavar="FACTORY",
        help="package.module:factory, timm:NAME or torchvision:NAME, arguments after commas (timm:resnet18,"
        "num_classes=10); the current folder is searched too.",
    ),
]
Checkpoints = Annotated[
    list[Path],
    typer.Argument(metavar="CHECKPOINT…", help="Two or more: safetensors or torch state dicts."),
]
Checkpoint = Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="safetensors or a torch state dict.")]
Factories = Annotated[
    list[str] | None,
    typer.Option(
        "--factory",
        metavar="FACTORY",
        help="Where widths differ: the factory of each model after the first, in order.",
    ),
]
Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="SHAPE",
        help="Shape of an example input, such as 1,3,32,32 or 1,16:int64; once for each input of the model.",
    ),
]
MaybeInputs = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", metavar="SHAPE", help="For ONNX: shape of an example input, once for each input."),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the weights go: .safetensors or .pt.")]
Alpha = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NUMBER|PATTERN=NUMBER",
        help="Share of the channels that stay isolated: 0 is one model's widths, 1 the ensemble; for "
        "partial-ot 0.4 unless given, else 0. A pattern sets it for the spaces it matches.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NUMBER|PATTERN=NUMBER",
        help="Share of the channels that is left; 0.5 unless given. A pattern sets it for the spaces it matches, and "
        "all others then keep all.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER|NAME=NUMBER,…",
        help="How large the result may be, and every space gets the share that suits it: 1.3 times the (last) model's "
        "parameters, or bounds on params, flops and channels. Whole numbers above 64 are counts.",
    ),
]
Mix = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…|auto",
        help="Share of each model, summing to one; equal unless given. auto finds them with --evaluate.",
    ),
]
MaybeEvaluate = Annotated[
    str | None,
    typer.Option(
        "--evaluate",
        metavar="FILE|FUNCTION",
        help="What --mix auto goes by: inputs and labels (.npz, .safetensors or .pt, a tensor for each input and one "
        "named labels, else the last), or package.module:function of a model that gives a number, larger is better.",
    ),
]
Evaluate = Annotated[
    str,
    typer.Option(
        metavar="FILE|FUNCTION",
        help="Inputs and labels, for accuracy (.npz, .safetensors or .pt, a tensor for each input and one named "
        "labels, else the last), or package.module:function of a model that gives a number, larger is better.",
    ),
]
Features = Annotated[str, typer.Option(help="Compare channels by: auto, weights, activations or both.")]
Site = Annotated[str, typer.Option(help="Activations pre or post the activation function: auto, pre, post.")]
Align = Annotated[str, typer.Option(help="fixed-point or greedy.")]
Norm = Annotated[str, typer.Option(help="Batch-norm statistics: auto, recalibrate or analytic.")]
Convention = Annotated[str, typer.Option(help="value, or mass (the paper's form).")]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Unlabelled inputs: .npy, .npz, .safetensors or .pt with a tensor for each input."
    ),
]
NeededData = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Unlabelled inputs: .npy, .npz, .safetensors or .pt with a tensor for each input.",
    ),
]
Batch = Annotated[int, typer.Option("--batch", "--batch-size", min=1, help="Samples of the data in a batch.")]
Refit = Annotated[
    bool, typer.Option("--refit", help="Fit the result's layers to the models on the data afterwards, without labels.")
]
Ridge = Annotated[
    float | None, typer.Option(metavar="NUMBER", help="How strongly refitting holds the weights; 0.01 unless given.")
]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="TYPE", help="Store parameters as float16, bfloat16 or float32; as they are unless given."),
]
Check = Annotated[bool, typer.Option(help="Verify on numbers that channels can be moved and spaces widened.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
