"""The command `partialfusion study`: list, run and report the experiments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import OptionError
from .options import AsJson
from .root import HELP_NAMES
from .root import app as root
from .terminal import examples, guarded, print_json

if TYPE_CHECKING:
    from partialfusion_study.experiments import Scale

app = typer.Typer(
    help="The paper's experiments on real data: run them, and write pages with the paper's numbers beside ours.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings=HELP_NAMES,
)
root.add_typer(app, name="study")

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", help="Experiments; all where none is named.")]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny settings that run through in seconds and mean nothing.")]
Full = Annotated[bool, typer.Option("--full", help="CIFAR-10 at the paper's scale too; wants a GPU and days.")]
Results = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the pages, with the results in cells/ inside. Default: docs/results of a checkout, else "
        "results; quick results go to results/quick.",
    ),
]


@app.command("list", epilog=examples("study list"))
@guarded
def list_(quick: Quick = False, full: Full = False, results: Results = None, as_json: AsJson = False) -> None:
    """Experiments, the paper's labels, and how much of each has been run."""
    from partialfusion_study.conduct import missing, store_of
    from partialfusion_study.experiments import EXPERIMENTS

    scale = _scale(quick, full)
    store = store_of(_folder(results, scale))
    rows = []
    for experiment in EXPERIMENTS.values():
        cells = len(set(experiment.grid(scale))) + len(experiment.trainings(scale))
        rows.append((experiment, cells, missing(experiment, scale, store)))
    if as_json:
        print_json([
            {"name": e.name, "title": e.title, "labels": e.labels, "data": e.data, "cells": n, "missing": left}
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
        int | None, typer.Option(min=0, help="Processes; default one per core, 0 for none beside this one.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler whose workers compute instead.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Holds MNIST and CIFAR-10; default: the cache, else fetched.")
    ] = None,
    results: Results = None,
    as_json: AsJson = False,
) -> None:
    """Compute what has no result yet; a run that was stopped goes on where it was."""
    from dataclasses import asdict

    from partialfusion_study.conduct import check_data, conduct, store_of
    from partialfusion_study.experiments import chosen
    from partialfusion_study.runner import executor

    if workers is not None and cluster is not None:
        raise OptionError("--workers and --cluster exclude each other: cells run here or there")
    if data is not None and cluster is not None:
        raise OptionError("--data is a folder of this machine: set PARTIALFUSION_DATA where the workers are started")
    if data is not None:
        os.environ["PARTIALFUSION_DATA"] = str(data)
    scale = _scale(quick, full)
    folder = _folder(results, scale)
    experiments = chosen(names or [])
    if cluster is None:
        check_data(experiments, scale)
    with executor(workers, cluster) as pool:
        done = conduct(experiments, scale, store_of(folder), pool)
    if as_json:
        print_json({"results": str(folder), "trainings": asdict(done.trainings), "cells": asdict(done.cells)})
    else:
        typer.echo(f"{done}\nresults in {folder}; write the pages with: partialfusion study report{_flag(scale)}")


@app.command(epilog=examples("study report", "study report split_data --results my/results"))
@guarded
def report(
    names: Names = None, quick: Quick = False, full: Full = False, results: Results = None, as_json: AsJson = False
) -> None:
    """Write the pages, with figures, of all experiments that have their results; those named must have them."""
    from partialfusion_study.conduct import missing, store_of, write_pages
    from partialfusion_study.experiments import chosen

    scale = _scale(quick, full)
    folder = _folder(results, scale)
    store = store_of(folder)
    lacking = {e.name: left for e in chosen([]) if (left := missing(e, scale, store))}
    for name in [e.name for e in chosen(names or []) if names and e.name in lacking]:
        again = f"partialfusion study run {name}{_flag(scale)}"
        raise OptionError(f"{name} lacks {lacking[name]} results in {folder}: {again}")
    ready = [e for e in chosen([]) if e.name not in lacking]
    if not ready:
        raise OptionError(f"there are no results in {folder} yet: partialfusion study run{_flag(scale)}")
    written = write_pages(ready, scale, store, folder, lacking=list(lacking))
    if as_json:
        print_json({"written": [str(path) for path in written], "missing": lacking})
        return
    typer.echo(f"{len(written)} files in {folder}; start at {written[-1]}")
    for name, left in lacking.items():
        typer.echo(f"left out: {name}, {left} results to run")


def _scale(quick: bool, full: bool) -> Scale:
    if quick and full:
        raise OptionError("--quick and --full exclude each other")
    return "quick" if quick else "full" if full else "usual"


def _flag(scale: Scale) -> str:
    return "" if scale == "usual" else f" --{scale}"


def _folder(given: Path | None, scale: Scale) -> Path:
    """Where results go unless the user says: full and quick ones never among those of the usual scale."""
    if given is not None:
        return given
    home = Path("docs/results") if Path("docs/results").is_dir() else Path("results")
    return home if scale == "usual" else Path("results") / scale
