"""A study from end to end: train the networks, run the cells, write the pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from partialfusion.core.progress import ProgressCallback
from partialfusion.errors import DataError

from .cell import Cell
from .data import cache, load, text
from .data.images import TITLES, checksum
from .data.published import PUBLISHED
from .experiments import Experiment, Scale
from .recipes import Recipe
from .report import RULES, Entry, write_chapter, write_index
from .runner import Summary, run
from .store import Store
from .text_recipes import TextRecipe

CELLS = "cells"  # the folder of the results inside the folder of the pages


@dataclass(frozen=True)
class StudySummary:
    """The outcome of a run: of its trainings and of its cells."""

    trainings: Summary
    cells: Summary

    def __str__(self) -> str:
        return f"networks: {self.trainings}; cells: {self.cells}"


def store_of(folder: Path) -> Store:
    """The results from which the pages in a folder are written."""
    return Store(folder / CELLS)


def run_study(
    experiments: Sequence[Experiment],
    scale: Scale,
    store: Store,
    executor: Executor,
    *,
    progress: bool | ProgressCallback | None = None,
) -> StudySummary:
    """Train the networks that the experiments need, then compute their cells; nothing is computed twice."""
    trainings = run(_cells(e.trainings(scale) for e in experiments), store, executor, progress=progress)
    return StudySummary(trainings, run(_cells(e.cells(scale) for e in experiments), store, executor, progress=progress))


def check_data(experiments: Sequence[Experiment], scale: Scale) -> None:
    """Refuse what every cell would fail with: no images, no text, or no place for trained networks.

    Other data than that of the committed results is refused too, except for quick results, which mean nothing: results
    are identified by their configuration alone.
    """
    cache.make(cache.checkpoints())
    recipes = [model.recipe for e in experiments for model in e.trainings(scale)]
    for name in sorted({recipe.subset.data for recipe in recipes if isinstance(recipe, Recipe)}):
        if checksum(load(name)) != PUBLISHED[name].sha256 and scale != "quick":
            raise DataError(f"the given data is not the published {TITLES[name]}: only --quick runs on other images")
    for domain in text.DOMAINS if any(isinstance(recipe, TextRecipe) for recipe in recipes) else ():
        if not text.is_published(domain) and scale != "quick":
            raise DataError(f"the text at hand is not {text.TITLES[domain]}: only --quick runs on other text")


def missing(experiment: Experiment, scale: Scale, store: Store) -> int:
    """The number of results of an experiment that are not in the store."""
    return sum(cell not in store for cell in set(_cells([experiment.trainings(scale), experiment.cells(scale)])))


def write_pages(
    experiments: Sequence[Experiment], scale: Scale, store: Store, folder: Path, *, lacking: Sequence[str] = ()
) -> list[Path]:
    """Write a page for every experiment and their index; all their results must be in the store.

    Args:
        experiments: the experiments.
        scale: the scale of their cells.
        store: the results.
        folder: the folder of the pages.
        lacking: names of experiments with missing results, which the index lists.

    Returns:
        The paths of the files, the index last.
    """
    written, entries = [], []
    folder.mkdir(parents=True, exist_ok=True)
    for experiment in experiments:
        finding, chapter = experiment.chapter(scale, store.__getitem__)
        whole = f"{chapter.text}\n\n{_provenance(experiment, scale, store)}"
        written += write_chapter(replace(chapter, text=whole), folder)
        entries.append(Entry(chapter.name, chapter.title, chapter.references, finding, chapter.verdicts))
    written.append(
        write_index(
            entries,
            folder,
            title="Results",
            text=f"{INDEX} {SCALES[scale]} {_dates(experiments, scale, store)}\n\n{RULES}{_not_run(lacking)}",
        )
    )
    return written


INDEX = (
    "The paper's experiments, run with this library. `partialfusion study report` writes these pages and pictures from "
    f"the results in `{CELLS}/`, which `partialfusion study run` computes. Every line there contains the complete "
    "configuration of a run, the machine and the time it took (a network that was found in the cache took none). "
    "Unless stated otherwise, partial OT matches channels by weights, and clustering compares them by activations on "
    "1,000 unlabelled training images; clustering takes the best of 1,000 randomised runs (the paper usually takes "
    "50,000), and merged channels are averages, not sums. Lines marked as ours go beyond the paper; clustering with "
    "exchange compares weights and activations, after the activation function in networks with ReLU and before it in "
    "those with GELU. Sizes are in effective parameters, those outside of zero blocks, unless they are called dense."
)
SCALES: dict[Scale, str] = {
    "quick": "**Quick settings: these numbers mean nothing.**",
    "usual": (
        "MNIST is at the paper's scale. CIFAR-10 is at a reduced scale for two CPU cores: networks of a quarter of the "
        "width with short training, whose checkpoints are in `zoo/`."
    ),
    "full": "All experiments are at the paper's scale.",
}


def _dates(experiments: Sequence[Experiment], scale: Scale, store: Store) -> str:
    """From which days the results are: a page may have some of several."""
    days = sorted({store.record(cell).when[:10] for cell in _cells(e.cells(scale) for e in experiments)})
    if not days:
        return ""
    return f"The oldest result is from {days[0]}, the newest from {days[-1]}."


def _not_run(lacking: Sequence[str]) -> str:
    names = ", ".join(f"`{name}`" for name in lacking)
    return f"\n\nNot run here yet: {names}." if lacking else ""


def _cells(groups: Iterable[Sequence[Cell]]) -> list[Cell]:
    return [cell for group in groups for cell in group]


def _provenance(experiment: Experiment, scale: Scale, store: Store) -> str:
    """How many runs, how long they took, and on which machines."""
    records = [store.record(cell) for cell in dict.fromkeys(experiment.cells(scale))]
    seconds = sum(record.seconds for record in records)
    machines = sorted({f"{r.machine['cpu']}, {r.machine['cores']} cores, torch {r.machine['torch']}" for r in records})
    many, where = "s" * (len(records) > 1), escape("; ".join(machines), quote=False)
    return f"{len(records)} run{many} in all, {seconds / 60:.1f} CPU-minutes on {where}."
