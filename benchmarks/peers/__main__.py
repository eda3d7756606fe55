"""Compare with other tools: python -m benchmarks.peers, or make peers."""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

import partialfusion as pf
from partialfusion.core.text import table
from partialfusion_study.cell import machine

from . import ours, page
from .adapters import model_folding, pleas, torch_pruning, zipit
from .rows import Row, Store
from .tasks import TASKS, Case, Task

RESULTS = Path(__file__).parents[2] / "docs" / "results"


class Method(Protocol):
    """Anything that makes one network of the networks of a case."""

    @property
    def name(self) -> str: ...

    @property
    def group(self) -> str: ...

    def suits(self, task: Task) -> bool: ...

    def run(self, case: Case) -> nn.Module: ...


def main() -> None:
    options = _options()
    store = Store(RESULTS / "peers.jsonl")
    methods = _methods(options)
    _warm_up()
    for task in TASKS:
        if options.tasks and task.key not in options.tasks:
            continue
        if not store.complete(task.key, _reference(task), len(task.cases)):
            for row in _sources(task):
                store.add(row)
        for method in methods:
            known = store.complete(task.key, method.name, len(task.cases)) and not options.again
            if known or not method.suits(task) or (options.method and options.method not in method.name):
                continue
            row = _measured(task, method)
            store.add(row)
            print(f"{task.key:16} {method.name:64}", *row.cells(), flush=True)
    store.tidy(_order(store))
    page.write(store, RESULTS / "peers.md")
    for task in TASKS:
        rows = [(row.method, *row.cells()) for row in store.rows.values() if row.task == task.key]
        print(f"\n{task.title}\n\n{table(('', 'accuracy', 'size', 'CPU s'), rows, align='<>>>')}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("tasks", nargs="*", help=f"which of {', '.join(t.key for t in TASKS)}; all unless given")
    parser.add_argument("--only", choices=("ours", "peers"), help="run our methods, or the others, alone")
    parser.add_argument("--method", help="run only methods whose names contain this text")
    parser.add_argument("--again", action="store_true", help="run also what has been measured")
    parser.add_argument("--zipit", type=Path, help="a clone of github.com/gstoica27/ZipIt")
    parser.add_argument("--pleas", type=Path, help="a clone of github.com/SewoongLab/PLeaS-Merging")
    parser.add_argument("--model-folding", type=Path, help="a clone of github.com/nanguoyu/model-folding-universal")
    found = parser.parse_args()
    if unknown := set(found.tasks) - {t.key for t in TASKS}:
        parser.error(f"there is no task {', '.join(sorted(unknown))}")
    return found


def _methods(options: argparse.Namespace) -> list[Method]:
    """The methods that can run here."""
    found: list[Method] = [] if options.only == "peers" else [*ours.methods()]
    if options.only == "ours":
        return found
    if find_spec("torch_pruning"):
        import_module("torch_pruning")  # before the clock starts
        found += torch_pruning.METHODS
    else:
        print("Torch-Pruning is not installed: pip install torch-pruning")
    if options.zipit:
        found += zipit.methods(options.zipit.resolve())
    if options.pleas:
        found += pleas.methods(options.pleas.resolve())
    if options.model_folding:
        found += model_folding.methods(options.model_folding.resolve())
    return found


def _measured(task: Task, method: Method) -> Row:
    accuracy, ratio, seconds = [], [], []
    for case in task.cases:
        gc.collect()
        case.budget()  # known before the clock starts
        case.data  # noqa: B018 (read before the clock starts)
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.process_time()
            model = method.run(case)
            seconds.append(round(time.process_time() - start, 2))
        accuracy.append(round(case.score(model), 2))
        ratio.append(round(case.ratio(model), 4))
    here = f"{machine()['cpu']}, torch {machine()['torch']}"
    return Row(task.key, method.name, method.group, tuple(accuracy), tuple(ratio), tuple(seconds), here)


def _sources(task: Task) -> list[Row]:
    found = [case.sources() for case in task.cases]
    return [Row(task.key, name, "sources", tuple(round(one[name], 2) for one in found)) for name in found[0]]


def _reference(task: Task) -> str:
    return "ensemble" if task.merges else "the network"


def _order(store: Store) -> Sequence[tuple[str, str]]:
    """By task; the networks first, then our methods, without those there are no more, then each peer."""
    tasks = {task.key: task for task in TASKS}
    places = {method.name: k for k, method in enumerate(ours.methods())}
    suited = {(key, method.name) for key, task in tasks.items() for method in ours.methods() if method.suits(task)}
    kept = [row for row in store.rows.values() if row.group != "ours" or row.key in suited]
    groups = ["sources", "ours", *sorted({row.group for row in kept} - {"sources", "ours"})]

    def place(row: Row) -> tuple[int, int, int]:
        return list(tasks).index(row.task), groups.index(row.group), places.get(row.method, 0)

    return [row.key for row in sorted(kept, key=place)]


def _warm_up() -> None:
    """What a process does once (loading torch.export, compiled solvers) is not part of the times."""
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.randn(16, 4)
    for method in ours.NAMES:
        pf.fuse([model, model], x, method=method, budget=1.2, data=[x], refit=True, progress=False)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
