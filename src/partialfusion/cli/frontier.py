"""`partialfusion frontier`: measure every size and mix, as a table and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import OptionError
from . import options as opt
from .data import input_files, load_data, load_evaluate
from .parse import (
    factory_per_model,
    inputs_or_none,
    parse_budget,
    parse_names,
    parse_numbers,
    parse_output,
    parse_refit,
    parse_round_to,
    parse_shares,
)
from .root import app, examples
from .terminal import guarded, interrupted, print_json, working

if TYPE_CHECKING:
    from ..tradeoff import Frontier

PAGES, SUFFIXES = (".html", ".htm"), (".html", ".htm", ".csv", ".json")
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
    evaluate: opt.Evaluate,
    out: Annotated[
        list[Path],
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="File to write: a page (.html) or a table (.csv, .json). Repeat for several.",
        ),
    ],
    inputs: opt.InputsOrData = None,
    factories: opt.Factories = None,
    output: opt.Output = None,
    alphas: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Isolated fractions to measure, 0 to 1. Default: 0,0.2,0.4,0.6,0.8,1."),
    ] = None,
    budgets: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            metavar="NUMBER|NAME=NUMBER,…",
            help="A size to measure, as for fuse. Repeat for several; without --alphas these are all.",
        ),
    ] = None,
    round_to: opt.RoundTo = "auto",
    methods: Annotated[str, typer.Option(metavar="A,B,…", help="Methods to measure, as for fuse.")] = "partial-ot",
    mixes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B,…",
            help="Shares of the models, summing to one; of two models the share of the first is enough. Repeat for "
            "several mixes. Default: equal.",
        ),
    ] = None,
    size: Annotated[
        str,
        typer.Option(
            metavar="dense|effective",
            help="What the size of a network is: the parameters of the module, or those outside its zero blocks, as "
            "blocks and files hold them.",
        ),
    ] = "dense",
    latency: Annotated[
        bool, typer.Option("--latency", help="Also time every network on the example inputs, dense and as blocks.")
    ] = False,
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
    names: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Names of the models. Default: model A, model B, …")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of what --evaluate measures, for the table.")
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Title of the page.")] = TITLE,
    check: opt.Check = True,
    allow_shortfall: opt.AllowShortfall = False,
    seed: opt.Seed = 0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Measure the trade-off of fusing: score against size, from one model to the ensemble of all.

    Prints a table and writes it as a page that opens offline. After Ctrl-C the networks measured so far are written.
    """
    options: dict[str, Any] = {
        "alphas": parse_numbers("--alphas", alphas),
        "round_to": parse_round_to(round_to),
        "methods": parse_names("--methods", methods),
        "mixes": None if mixes is None else [parse_shares("--mixes", mix) for mix in mixes],
        "size": size,
        "latency": latency,
        "features": features,
        "site": site,
        "similarity": similarity,
        "align": align,
        "masses": masses,
        "norm": norm,
        "refit": parse_refit(refit, ridge),
        "zeros": zeros,
        "convention": convention,
        "output": parse_output(output),
        "names": parse_names("--names", names),
        "metric": metric,
        "check": check,
        "allow_shortfall": allow_shortfall,
        "seed": seed,
    }
    bounds = None if budgets is None else [parse_budget(budget) or {} for budget in budgets]
    specs = factory_per_model(factory, factories or [], len(checkpoints))
    with working(not quiet) as report:
        report("starting PyTorch", 0.0)
        from ..fusing.budget import Budget
        from ..io.checkpoints import load_model
        from ..tradeoff import frontier as measured

        options["budgets"] = None if bounds is None else [Budget(**bound) for bound in bounds]
        check_outputs(out, keep=[*checkpoints, *input_files(specs, data, evaluate)])
        tensors = inputs_or_none(inputs or (), data, seed)
        batches = load_data(data, batch, tensors)
        score = load_evaluate(evaluate, batch, tensors)
        report("loading", 0.0)
        models = [load_model(spec, path, seed=seed) for spec, path in zip(specs, checkpoints, strict=True)]
        found = measured(models, tensors, evaluate=score, data=batches, progress=report, **options)
        _check_fused(found)
        for path in out:
            write(found, path, title)
    _show(found, out, as_json=as_json, quiet=quiet)


def _check_fused(found: Frontier) -> None:
    """A complete frontier without a single fused network is an error; an interrupted one may have none yet."""
    fused = [p for p in found.points if p.kind == "fused"]
    if found.complete and all(p.score is None for p in fused):
        raise OptionError(
            f"none of the {len(fused)} fusions could be measured; the first failed with: {fused[0].error}"
        )


def check_outputs(paths: Sequence[Path], *, suffixes: Sequence[str] = SUFFIXES, keep: Sequence[Path] = ()) -> None:
    """Report problems with the files to write before any work is done."""
    from ..io.files import check_target, destination

    for number, path in enumerate(paths):
        check_target(path, suffixes=suffixes, keep=keep)
        if destination(path) in map(destination, paths[:number]):
            raise OptionError(f"--out {path} is given twice")


def write(found: Frontier, path: Path, title: str = TITLE) -> None:
    """Write one file, in the format of its suffix."""
    if path.suffix in PAGES:
        found.save_html(path, title=title)
    elif path.suffix == ".csv":
        found.to_csv(path)
    else:
        found.to_json(path)


def _show(found: Frontier, out: list[Path], *, as_json: bool, quiet: bool) -> None:
    written = ", ".join(map(str, out))
    if as_json:
        print_json({"out": [str(path) for path in out], **found.to_dict()})
    elif not quiet:
        typer.echo(f"{found}\n\nwrote {written}")
    if not found.complete:
        interrupted(f"the {len(found.points)} networks measured so far are in {written}")
