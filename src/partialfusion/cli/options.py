"""Arguments and options of several commands; a name means the same in every command and in the Python API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.scalars import LARGEST

Factory = Annotated[
    str,
    typer.Argument(
        metavar="FACTORY",
        help="package.module:factory, timm:NAME, torchvision:NAME or hf:DIR (a local directory with a config.json), "
        "with arguments after commas (timm:resnet18,num_classes=10). Modules in the current directory are found too.",
    ),
]
Checkpoints = Annotated[
    list[Path],
    typer.Argument(
        metavar="CHECKPOINT…",
        help="Two or more: safetensors files, torch state dicts, or directories of Hugging Face.",
    ),
]
Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="CHECKPOINT…",
        help="Two or more: safetensors files, torch state dicts, or directories of Hugging Face. After hf:DIR also "
        "hf:DIR, once or more: all of them are then streamed.",
    ),
]
Checkpoint = Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A safetensors file or a torch state dict.")]
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
        help="Shape of an example input, such as 1,3,32,32, or input_ids=1,16:int64 by name. Repeat for each input.",
    ),
]
InputsOrData = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="SHAPE",
        help="Shape of an example input, such as 1,3,32,32, or input_ids=1,16:int64 by name. Repeat for each input. "
        "May be left out where --data is a file of one tensor: its first samples then serve.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="NAME|NUMBER",
        help="Which entry of the model's output is the result, where it has several. Default: logits, if there is "
        "such an entry.",
    ),
]
MaybeInputs = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", metavar="SHAPE", help="For ONNX: shape of an example input. Repeat for each input."),
]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="File to write the weights to, .safetensors or .pt.")
]
FileOrFolder = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE|DIR",
        help="File to write the weights to, .safetensors or .pt; for hf:A hf:B a directory.",
    ),
]
Alpha = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NUMBER|PATTERN=NUMBER",
        help="Fraction of the channels that stay isolated: 0 gives one model's widths, 1 the ensemble. A pattern sets "
        "it for the spaces it matches. Default: 0.4 for partial-ot, else 0.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NUMBER|PATTERN=NUMBER",
        help="Fraction of the channels to keep. A pattern sets it for the spaces it matches; the others then keep all "
        "their channels. Default: 0.5.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER|NAME=NUMBER,…",
        help="How large the result may be; each space gets the width that suits it. 1.3 means a model with 1.3 times "
        "the (last) model's parameters. By name: dense (the same), params (effective, without zero blocks), flops, "
        "latency (measured here) and channels. Whole numbers above 64 are counts.",
    ),
]
RoundTo = Annotated[
    str,
    typer.Option(
        metavar="auto|NUMBER",
        help="Make every part of a space a multiple of so many channels, which kernels compute faster; sizes then mean "
        "the nearest such one. auto: 16 for convolutions on a CPU, else 8, and less in small spaces. 1: any size.",
    ),
]
Mix = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…|auto",
        help="Shares of the models, summing to one; of two models the share of the first is enough. auto chooses them "
        "with --evaluate. Default: equal shares.",
    ),
]
MaybeEvaluate = Annotated[
    str | None,
    typer.Option(
        "--evaluate",
        metavar="FILE|FUNCTION",
        help="What --mix auto maximises: accuracy on a file of inputs and labels (.npz, .safetensors or .pt; the "
        "labels are the tensor named labels, else the last), or package.module:function, which takes a model and "
        "returns a number.",
    ),
]
Evaluate = Annotated[
    str,
    typer.Option(
        metavar="FILE|FUNCTION",
        help="What to measure: accuracy on a file of inputs and labels (.npz, .safetensors or .pt; the labels are the "
        "tensor named labels, else the last), or package.module:function, which takes a model and returns a number; "
        "larger is better.",
    ),
]
FuseMethod = Annotated[
    str,
    typer.Option(
        help="Fusion method: auto (with data the nearer of interpolate and cluster, refitted; partial-ot without), "
        "average, permutation, ot, "
        "partial-ot, cluster, interpolate, zip, magnitude or magnitude+ot."
    ),
]
Features = Annotated[
    str, typer.Option(help="What channels are compared by: auto, weights, activations, distances or both.")
]
Site = Annotated[str, typer.Option(help="Compare values before or after the activation function: auto, pre or post.")]
Similarity = Annotated[
    str | None,
    typer.Option(
        metavar="auto|permutation|rotation",
        help="What is compared: channels (permutation), or directions in spaces that may be rotated, such as the "
        "residual stream and the heads of a transformer (rotation). auto: both are tried, and the result that is "
        "nearer to the models on the data is taken. Default: rotation for transformers with the method auto and data, "
        "else permutation.",
    ),
]
Align = Annotated[str, typer.Option(help="How spaces are aligned: fixed-point or greedy.")]
Masses = Annotated[
    str,
    typer.Option(
        metavar="equal|incoming|outgoing",
        help="How much each channel counts in optimal transport (ot, partial-ot): the same, or by the norm of the "
        "weights that write it (incoming) or read it (outgoing). Not with a budget.",
    ),
]
Norm = Annotated[
    str,
    typer.Option(
        help="Statistics of batch norms, and of channels without a norm: auto, recalibrate, analytic or repair."
    ),
]
Convention = Annotated[str, typer.Option(help="Convention of the kernel pairs: value, or mass (the paper's).")]
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
Batch = Annotated[int, typer.Option("--batch", "--batch-size", min=1, help="Samples per batch.")]
Refit = Annotated[
    bool | None,
    typer.Option(
        "--refit/--no-refit",
        help="Then fit the layers of the result to the models on the data, without labels. Default: with the method "
        "auto, where there is data.",
        show_default=False,
    ),
]
Zeros = Annotated[
    str,
    typer.Option(
        metavar="auto|free|kept",
        help="What refitting may do with the zero blocks between the models: fill them (free) or not (kept), for "
        "blocks and small files. auto: free, but kept where a budget bounds params.",
    ),
]
Ridge = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="How strongly refitting holds on to the fused weights. Default: 0.01."),
]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="TYPE", help="Store parameters as float16, bfloat16 or float32. Default: as they are."),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Where to compute the heavy parts, such as cuda or cuda:1. Models and result stay on the CPU.",
    ),
]
ShardSize = Annotated[
    str, typer.Option(metavar="SIZE", help="For hf:A hf:B: the largest size of a file of the result, such as 500MB.")
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="For hf:A hf:B: address of a Dask scheduler, whose workers match and write instead. They must see the "
        "same folders.",
    ),
]
Check = Annotated[bool, typer.Option(help="Verify numerically that channels can be moved and spaces widened.")]
AllowShortfall = Annotated[
    bool,
    typer.Option(
        "--allow-shortfall",
        help="Accept a result that falls short of what was asked for, such as one at alpha 1 that is not the ensemble.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=LARGEST, help="Random seed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
