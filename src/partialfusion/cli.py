"""The command line: parses what was typed, calls the library, prints what it returns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import OptionError
from .study.commands import app as study_app
from .terminal import examples, guarded, print_json

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from .blueprint import Blueprint
    from .fusion import Fusion
    from .study.digits import Study

# Modules that need torch are imported inside the commands, so that help and typing mistakes answer at once.

app = typer.Typer(
    name="partialfusion",
    help="Combine trained neural networks: the dial between averaging weights and ensembling.",
    epilog="Start with: partialfusion demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Factory = Annotated[
    str,
    typer.Argument(
        metavar="FACTORY",
        help="package.module:factory, called without arguments; the current folder is searched too.",
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
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


app.add_typer(study_app, name="study")


def main() -> None:
    """The entry point of the `partialfusion` command."""
    app()


@contextmanager
def _progress(shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Tells on stderr what is being done, silent where nobody watches a terminal.

    What a user's own code prints meanwhile goes to stderr too, so that stdout holds the result alone.
    """
    with redirect_stdout(sys.stderr):
        if not shown or not sys.stderr.isatty():
            yield lambda step: None
            return
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:
            yield lambda step: status.update(f"{step} …")


def _share_told(tell: Callable[[str], None]) -> Callable[[str, float], None]:
    """A listener of the library that tells the step and how much of the whole is done."""
    return lambda step, done: tell(f"{step}, {done:.0%}" if done else step)


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"partialfusion {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog=examples("demo", "demo --seed 1 --json", "demo --save digits"))
@guarded
def demo(
    seed: Seed = 0,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep the specialists, as a.safetensors and b.safetensors."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train two specialists on handwritten digits and fuse them, from average to ensemble. Takes seconds."""
    with _progress() as tell:
        tell("starting PyTorch")
        from .study import digits

        if save is not None:
            _make_folder(save)
        pair = digits.specialists(seed, on_step=tell)
        if save is not None:
            from .checkpoints import save_state

            save_state(pair.a, save / "a.safetensors")
            save_state(pair.b, save / "b.safetensors")
        study = digits.study(pair, on_step=tell)
    if as_json:
        print_json(asdict(study))
    else:
        _print_study(study, save)


@app.command(
    epilog=examples(
        "trace torchvision.models:resnet18 --input 1,3,64,64",
        "trace nets:classifier --input 1,16:int64 --weights model.safetensors --json",
    )
)
@guarded
def trace(
    factory: Factory,
    inputs: Inputs,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A checkpoint to load into the model first.")
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Verify on numbers that channels can be moved and spaces widened.")
    ] = True,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Print a model's blueprint: its channel spaces, and what writes, reads and scales them."""
    with _progress() as tell:
        tell("starting PyTorch")
        from . import api
        from .checkpoints import build, load_model

        tensors = example_inputs(inputs, seed)
        tell("loading")
        model = build(factory, seed=seed) if weights is None else load_model(factory, weights, seed=seed)
        tell("tracing")
        blueprint = api.trace(model, tensors, check=check, seed=seed)
    if as_json:
        print_json(blueprint_record(blueprint))
    else:
        typer.echo(str(blueprint))


@app.command(
    epilog=examples(
        "fuse nets:resnet a.pt b.pt --input 1,3,32,32 \\\n    --alpha 0.4 --out fused.safetensors",
        "fuse nets:resnet a.pt b.pt c.pt --input 1,3,32,32 --mix 0.2,0.3,0.5 \\\n"
        "    --alpha 0.2 --alpha 'layer4*=0.8' --out fused.safetensors",
        "fuse nets:small a.pt b.pt --factory nets:large --input 1,3,32,32 \\\n"
        "    --data images.npy --out fused.safetensors",
    )
)
@guarded
def fuse(
    factory: Factory,
    weights: Annotated[
        list[Path],
        typer.Argument(metavar="WEIGHTS", help="Two or more checkpoints: safetensors or torch state dicts."),
    ],
    inputs: Inputs,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="Where the fused weights go: .safetensors or .pt."),
    ],
    factories: Annotated[
        list[str] | None,
        typer.Option(
            "--factory",
            metavar="FACTORY",
            help="Where widths differ: the factory of each model after the first, in order.",
        ),
    ] = None,
    alpha: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER|PATTERN=NUMBER",
            help="Share of the channels that stay isolated: 0 is one model's size, 1 the ensemble; for "
            "partial-ot 0.4 unless given, else 0. A pattern sets it for the spaces it matches.",
        ),
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Share of each model, summing to one; equal unless given."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(help="average, permutation, ot, partial-ot, cluster, zip, magnitude or magnitude+ot."),
    ] = "partial-ot",
    features: Annotated[str, typer.Option(help="auto, weights, activations or both.")] = "auto",
    site: Annotated[
        str, typer.Option(help="Activations pre or post the activation function: auto, pre, post.")
    ] = "auto",
    align: Annotated[str, typer.Option(help="fixed-point or greedy.")] = "fixed-point",
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Unlabelled inputs: .npy, .safetensors or .pt with one tensor of them."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of the data in a batch.")] = 64,
    norm: Annotated[str, typer.Option(help="Batch-norm statistics: auto, recalibrate or analytic.")] = "auto",
    convention: Annotated[str, typer.Option(help="value, or mass (the paper's form).")] = "value",
    seed: Seed = 0,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Fuse checkpoints of one architecture into one model and write its weights.

    The result is of the class of the last model; its layers are as wide as alpha makes them.
    """
    with _progress(not quiet) as tell:
        tell("starting PyTorch")
        from . import api
        from .checkpoints import check_writable, load_batches, load_model, save_fusion

        check_writable(out, keep=[*weights, *([data] if data else [])])
        specs = factory_per_model(factory, factories or [], len(weights))
        options: dict[str, Any] = {
            "alpha": parse_alpha(alpha or []),
            "mix": parse_mix(mix),
            "method": method,
            "features": features,
            "site": site,
            "align": align,
            "norm": norm,
            "convention": convention,
        }
        tensors = example_inputs(inputs, seed)
        batches = None
        if data is not None:
            if len(tensors) > 1:
                raise OptionError(f"--data holds one input and the model takes {len(inputs)}: leave it out")
            batches = load_batches(data, batch_size, like=tensors[0])
        tell("loading")
        models = [load_model(spec, path, seed=seed) for spec, path in zip(specs, weights, strict=True)]
        tell("tracing and fusing")
        result = api.fuse(models, tensors, data=batches, seed=seed, progress=_share_told(tell), **options)
        tell("writing")
        save_fusion(result, out)
    if as_json:
        print_json(fusion_record(result, out))
    elif not quiet:
        typer.echo(str(result.summary()))
        typer.echo(f"\nwrote {out}. Its widths are the fused model's; to load it in Python:\n")
        typer.echo(loading_lines(specs[-1], out))


def factory_per_model(first: str, further: Sequence[str], models: int) -> list[str]:
    """One factory for each model: the same for all, or the first and one for each after it."""
    if not further:
        return [first] * models
    if len(further) != models - 1:
        raise OptionError(
            f"--factory is given {len(further)} time(s) for {models} models: FACTORY builds the first, give "
            f"--factory once for each of the other {models - 1}"
        )
    return [first, *further]


def parse_alpha(given: Sequence[str]) -> float | dict[str, float] | None:
    """A number, or patterns of space names with numbers; a number beside patterns is for all other spaces."""
    patterns: dict[str, float] = {}
    numbers: list[float] = []
    for text in given:
        pattern, equals, number = text.rpartition("=")
        if equals:
            patterns[pattern] = _number(number, f"--alpha {text}")
        else:
            numbers.append(_number(text, f"--alpha {text}"))
    if len(numbers) > 1:
        raise OptionError(f"--alpha gives {len(numbers)} numbers for all spaces; write PATTERN=NUMBER for some")
    if not patterns:
        return numbers[0] if numbers else None
    return {**patterns, "*": numbers[0]} if numbers else patterns


def parse_mix(given: str | None) -> list[float] | None:
    """Numbers between commas."""
    return None if given is None else [_number(part, f"--mix {given}") for part in given.split(",")]


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{option}: {text!r} is not a number") from None


def example_inputs(specs: Sequence[str], seed: int) -> tuple[Tensor, ...]:
    """Random inputs from texts such as 1,3,32,32 or 1,16:int64, one for each; integers are 0 or 1."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for spec in specs:
        sizes, _, name = spec.partition(":")
        dtype = getattr(torch, name or "float32", None)
        if not isinstance(dtype, torch.dtype):
            raise OptionError(f"--input {spec}: {name!r} is not a type of torch, such as float32 or int64")
        try:
            shape = [int(size) for size in sizes.split(",")]
        except ValueError:
            shape = []
        if not shape or min(shape) < 1:
            raise OptionError(f"--input {spec}: a shape is whole numbers between commas, such as 1,3,32,32")
        if dtype.is_floating_point or dtype.is_complex:
            inputs.append(torch.randn(shape, generator=generator).to(dtype))
        else:
            inputs.append(torch.randint(2, shape, generator=generator).to(dtype))
    return tuple(inputs)


def blueprint_record(blueprint: Blueprint) -> dict[str, Any]:
    """A blueprint as plain values."""
    spaces = [
        {
            "name": s.name,
            "width": s.width,
            "kind": s.kind,
            "reasons": list(s.reasons),
            "bindings": [
                {"parameter": b.parameter, "axis": b.axis, "role": b.role, "multiplicity": b.index.shape[1]}
                for b in s.bindings
            ],
        }
        for s in blueprint
    ]
    return {"spaces": spaces, "unknown": dict(blueprint.unknown or {}), "checked": blueprint.checked}


def fusion_record(fusion: Fusion, out: Path) -> dict[str, Any]:
    """A result's summary as plain values."""
    return {"out": str(out), **asdict(fusion.summary()), "ratio": fusion.count.ratio}


def loading_lines(factory: str, out: Path) -> str:
    """Python that loads a fused file."""
    module, _, attribute = factory.partition(":")
    name = attribute.partition(".")[0]
    if out.suffix == ".safetensors":
        use, call = "import partialfusion as pf", f"pf.load({str(out)!r}, into={attribute}())"
    else:
        use, call = "from partialfusion.checkpoints import load_fused", f"load_fused({attribute}(), {str(out)!r})"
    return f"    {use}\n    from {module} import {name}\n\n    model = {call}"


def _make_folder(path: Path) -> None:
    from .errors import CheckpointError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be made a folder: {error.strerror}; choose another") from error


def _print_study(study: Study, saved: Path | None) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    a, b = study.find("model A"), study.find("model B")
    seen_a = f"{study.trained_a} images: all of the digit {study.digit}, a tenth of the others"
    seen_b = f"{study.trained_b} images: no {study.digit} at all, nine tenths of the others"
    console.print(f"\nTwo networks, tested on {study.tested} images that neither has seen:\n")
    console.print(f"  A  {a.accuracy:.1%}  trained on {seen_a}")
    console.print(f"  B  {b.accuracy:.1%}  trained on {seen_b}")
    console.print("\nOne network made of both, with A and B mixed in three ways:")
    console.print(_study_table(study))
    console.print(
        "ratio: parameters relative to one parent. alpha: the share of the channels\n"
        "that stay isolated, from 0 (the size of one parent) to 1 (the exact ensemble).\n"
        "The plain average does without alignment: channel i of A meets channel i of B,\n"
        "whatever they stand for.\n"
    )
    if saved is not None:
        console.print(f"Saved a.safetensors and b.safetensors in {saved}.\n", markup=False, soft_wrap=True)
    console.print("[bold]Try next[/bold]\n")
    for line in next_steps(saved):
        console.print(f"  {line}".rstrip(), markup=False, soft_wrap=True)
    console.print()


def next_steps(saved: Path | None) -> list[str]:
    """Commands and lines of Python to go on with after the demo."""
    net = "partialfusion.study.digits:DigitsNet"
    folder = saved or Path("digits")
    a, b, fused = (folder / f"{name}.safetensors" for name in ("a", "b", "fused"))
    return [
        f"partialfusion trace {net} --input 1,64",
        *([] if saved else [f"partialfusion demo --save {folder}"]),
        f"partialfusion fuse {net} {a} {b} \\",
        f"    --input 1,64 --alpha 0.2 --alpha hidden1=0.8 --out {fused}",
        "",
        "import partialfusion as pf",
        "from partialfusion.study import digits",
        "",
        "pair = digits.specialists(seed=1)",
        "result = pf.fuse([pair.a, pair.b], pair.test.images[:2], alpha=0.4, mix=[0.6, 0.4])",
        "print(result.summary())",
    ]


def _study_table(study: Study) -> Table:
    """One row for each network, accuracies side by side for each mix."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("network", no_wrap=True)
    table.add_column("parameters", justify="right")
    table.add_column("ratio", justify="right")
    shares = list(dict.fromkeys(p.mix[0] for p in study.points if p.method == "ensemble"))
    for share in shares:
        table.add_column(f"{share:.1f} : {1 - share:.1f}", justify="right")
    alphas = list(dict.fromkeys(p.alpha for p in study.points if p.method == "partial-ot"))
    rows: list[tuple[str, str, float | None]] = [("plain average", "average", 0.0)]
    rows += [(f"fused, alpha {alpha:.1f}", "partial-ot", alpha) for alpha in alphas]
    rows += [("ensemble", "ensemble", None)]
    for label, method, alpha in rows:
        points = [study.find(method, alpha=alpha, share=share) for share in shares]
        cells = [f"{p.accuracy:.1%}" for p in points]
        table.add_row(label, f"{points[0].parameters:,}", f"{points[0].ratio:.2f}", *cells)
        if method == "average":
            table.add_section()
    return table
