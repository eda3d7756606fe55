"""`partialfusion study`: list, run and report the paper's experiments, which are in a package of their own."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import FusionError, OptionError
from .options import AsJson
from .root import HELP_NAMES, examples
from .root import app as root
from .terminal import guarded, print_json

if TYPE_CHECKING:
    from partialfusion_study.experiments import Scale

app = typer.Typer(
    help="The paper's experiments on real data: run them, and write pages with the paper's numbers beside ours.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings=HELP_NAMES,
)
root.add_typer(app, name="study")

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", help="Experiments. Default: all.")]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny settings that run in seconds; the results mean nothing.")]
Full = Annotated[bool, typer.Option("--full", help="Also CIFAR-10 at the paper's scale; needs a GPU and days.")]
Results = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the pages, with the results in cells/ inside it. Default: docs/results in a checkout, else "
        "results; quick results go to results/quick.",
    ),
]


@app.command("list", epilog=examples("study list"))
@guarded
def list_(quick: Quick = False, full: Full = False, results: Results = None, as_json: AsJson = False) -> None:
    """List the experiments, and how much of each has been run."""
    _check_installed()
    from partialfusion_study.experiments import EXPERIMENTS
    from partialfusion_study.study import missing, store_of

    scale = _scale(quick, full)
    store = store_of(_folder(results, scale))
    rows = []
    for experiment in EXPERIMENTS.values():
        cells = len(set(experiment.cells(scale))) + len(experiment.trainings(scale))
        rows.append((experiment, cells, missing(experiment, scale, store)))
    if as_json:
        print_json([
            {"name": e.name, "title": e.title, "references": e.references, "data": e.data, "cells": n, "missing": left}
            for e, n, left in rows
        ])  # fmt: skip
        return
    from ..core.text import table

    lines = [(e.name, e.data, str(n), "done" if not left else f"{left} to run", e.title) for e, n, left in rows]
    typer.echo(table(("name", "data", "cells", "state", "what it shows"), lines, align="<<><<"))


@app.command(
    epilog=examples("study run split_data", "study run --quick", "study run capacity --cluster tcp://host:8786")
)
@guarded
def run(
    names: Names = None,
    quick: Quick = False,
    full: Full = False,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Worker processes; 0 runs everything in this one. Default: one per core.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address of a Dask scheduler, whose workers compute instead.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder with MNIST and CIFAR-10. Default: the cache, else a download."),
    ] = None,
    results: Results = None,
    as_json: AsJson = False,
) -> None:
    """Compute the results that are missing; a run that was stopped continues where it left off."""
    _check_installed()
    from partialfusion_study.experiments import chosen
    from partialfusion_study.runner import executor
    from partialfusion_study.study import check_data, run_study, store_of

    if workers is not None and cluster is not None:
        raise OptionError("--workers and --cluster exclude each other: leave one of them out")
    if data is not None and cluster is not None:
        raise OptionError("--data is a folder on this machine: set PARTIALFUSION_DATA where the workers are started")
    if data is not None:
        os.environ["PARTIALFUSION_DATA"] = str(data)
    scale = _scale(quick, full)
    folder = _folder(results, scale)
    experiments = chosen(names or [])
    if cluster is None:
        check_data(experiments, scale)
    with executor(workers, cluster) as pool:
        done = run_study(experiments, scale, store_of(folder), pool)
    if as_json:
        print_json({"results": str(folder), "trainings": asdict(done.trainings), "cells": asdict(done.cells)})
    else:
        typer.echo(f"{done}\nresults in {folder}; write the pages with: partialfusion study report{_flag(scale)}")


@app.command(epilog=examples("study report", "study report split_data --results my/results"))
@guarded
def report(
    names: Names = None, quick: Quick = False, full: Full = False, results: Results = None, as_json: AsJson = False
) -> None:
    """Write pages with figures for all experiments whose results are complete; those named must be."""
    _check_installed()
    from partialfusion_study.experiments import chosen
    from partialfusion_study.study import missing, store_of, write_pages

    scale = _scale(quick, full)
    folder = _folder(results, scale)
    store = store_of(folder)
    lacking = {e.name: left for e in chosen([]) if (left := missing(e, scale, store))}
    for name in [e.name for e in chosen(names or []) if names and e.name in lacking]:
        again = f"partialfusion study run {name}{_flag(scale)}"
        raise OptionError(f"{name} lacks {lacking[name]} results in {folder}: run {again}")
    ready = [e for e in chosen([]) if e.name not in lacking]
    if not ready:
        raise OptionError(f"there are no results in {folder} yet: run partialfusion study run{_flag(scale)}")
    written = write_pages(ready, scale, store, folder, lacking=list(lacking))
    if as_json:
        print_json({"written": [str(path) for path in written], "missing": lacking})
        return
    typer.echo(f"{len(written)} files in {folder}; start at {written[-1]}")
    for name, left in lacking.items():
        typer.echo(f"left out: {name}, {left} results to run")


def _check_installed() -> None:
    """The library works without the experiments, so they may be missing."""
    try:
        import partialfusion_study  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "partialfusion_study":
            raise
        raise FusionError(
            "the experiments are in the package partialfusion_study, which is not installed: "
            'pip install "partialfusion[study]"'
        ) from error


def _scale(quick: bool, full: bool) -> Scale:
    if quick and full:
        raise OptionError("--quick and --full exclude each other")
    return "quick" if quick else "full" if full else "usual"


def _flag(scale: Scale) -> str:
    return "" if scale == "usual" else f" --{scale}"


def _folder(given: Path | None, scale: Scale) -> Path:
    """The default folder of the results keeps quick and full ones apart from those of the usual scale."""
    if given is not None:
        return given
    home = Path("docs/results") if Path("docs/results").is_dir() else Path("results")
    return home if scale == "usual" else Path("results") / scale
