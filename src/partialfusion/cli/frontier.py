"""`partialfusion frontier`: every size and mix measured, as a table and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import CheckpointError, OptionError
from . import options as opt
from .jobs import load_data
from .measures import files_read, load_measure
from .parse import example_inputs, factory_per_model, parse_names, parse_numbers, parse_refit
from .root import app
from .terminal import examples, guarded, interrupted, print_json, working

if TYPE_CHECKING:
    from ..tradeoff import Frontier

PAGES, FORMS = (".html", ".htm"), (".html", ".htm", ".csv", ".json")
TITLE = "Fusion frontier"


@app.command(
    epilog=examples(
        "frontier nets:resnet a.pt b.pt --input 1,3,32,32 \\\n    --evaluate validation.npz --out frontier.html",
        "frontier nets:resnet a.pt b.pt --input 1,3,32,32 --evaluate nets:score \\\n"
        "    --alphas 0,0.5,1 --methods average,partial-ot --mixes 0.3,0.7 --mixes 0.5,0.5 \\\n"
        "    --data images.npy --refit --out frontier.html --out frontier.csv",
    )
)
@guarded
def frontier(
    factory: opt.Factory,
    checkpoints: opt.Checkpoints,
    inputs: opt.Inputs,
    evaluate: opt.Evaluate,
    out: Annotated[
        list[Path],
        typer.Option(
            "--out", "-o", metavar="FILE", help="By its name: a page (.html) or a table (.csv, .json); once for each."
        ),
    ],
    factories: opt.Factories = None,
    alphas: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="The sizes, from 0 to 1; 0,0.2,0.4,0.6,0.8,1 unless given.")
    ] = None,
    methods: Annotated[str, typer.Option(metavar="A,B,…", help="Methods of fuse.")] = "partial-ot",
    mixes: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B,…", help="Shares of the models, once for each mix; equal shares unless given."),
    ] = None,
    features: opt.Features = "auto",
    site: opt.Site = "auto",
    align: opt.Align = "fixed-point",
    data: opt.Data = None,
    batch: opt.Batch = 64,
    norm: opt.Norm = "auto",
    refit: opt.Refit = False,
    ridge: opt.Ridge = None,
    convention: opt.Convention = "value",
    names: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Of the models; model A, model B, … unless given.")
    ] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="What --evaluate measures, for the table.")] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Of the page.")] = TITLE,
    check: opt.Check = True,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Measure what fusing trades: the score against the size, from one model to the ensemble of all.

    Prints the table and writes it as a page that opens offline. Ctrl-C ends it, and what was measured is written.
    """
    sizes = parse_numbers("--alphas", alphas)
    options = {
        "methods": parse_names("--methods", methods),
        "mixes": None if mixes is None else [_mix(mix) for mix in mixes],
        "features": features,
        "site": site,
        "align": align,
        "norm": norm,
        "refit": parse_refit(refit, ridge),
        "convention": convention,
        "names": parse_names("--names", names),
        "metric": metric,
        "check": check,
        "seed": seed,
    } | ({} if sizes is None else {"alphas": sizes})
    specs = factory_per_model(factory, factories or [], len(checkpoints))
    with working(not quiet) as tell:
        tell("starting PyTorch", 0.0)
        from ..io.checkpoints import load_model
        from ..tradeoff import frontier as measured

        check_outputs(out, keep=[*checkpoints, *files_read(data, evaluate)])
        tensors = example_inputs(inputs, seed)
        batches = load_data(data, batch, tensors)
        measure = load_measure(evaluate, batch, tensors)
        tell("loading", 0.0)
        models = [load_model(spec, path, seed=seed) for spec, path in zip(specs, checkpoints, strict=True)]
        found = measured(models, tensors, evaluate=measure, data=batches, progress=tell, **options)  # type: ignore[arg-type]
        _check_fused(found)
        for path in out:
            write(found, path, title)
    _show(found, out, as_json=as_json, quiet=quiet)


def _check_fused(found: Frontier) -> None:
    """A frontier without a single fusion is none; one that was interrupted has what there was time for."""
    fused = [p for p in found.points if p.kind == "fused"]
    if found.complete and all(p.score is None for p in fused):
        raise OptionError(f"none of the {len(fused)} fusions could be made and measured; the first: {fused[0].error}")


def check_outputs(paths: Sequence[Path], *, forms: Sequence[str] = FORMS, keep: Sequence[Path] = ()) -> None:
    """What is wrong with the files to write shows before any work is done."""
    from ..io.files import check_target

    for number, path in enumerate(paths):
        if path.suffix not in forms:
            raise CheckpointError(f"{path} cannot be written: its name must end in {' or '.join(forms)}")
        check_target(path, keep=keep)
        if path in paths[:number]:
            raise OptionError(f"--out {path} is given twice")


def write(found: Frontier, path: Path, title: str = TITLE) -> None:
    """One file, of the form that its name says."""
    if path.suffix in PAGES:
        found.save_html(path, title=title)
    elif path.suffix == ".csv":
        found.to_csv(path)
    else:
        found.to_json(path)


def _mix(text: str) -> list[float] | float:
    """Shares; one number alone is the share of the first of two models."""
    shares = parse_numbers("--mixes", text) or []
    return shares[0] if len(shares) == 1 else shares


def _show(found: Frontier, out: list[Path], *, as_json: bool, quiet: bool) -> None:
    written = ", ".join(map(str, out))
    if as_json:
        print_json({"out": [str(path) for path in out], **found.to_dict()})
    elif not quiet:
        typer.echo(f"{found}\n\nwrote {written}")
    if not found.complete:
        interrupted(f"what was measured until then, {len(found.points)} networks, is in {written}")
