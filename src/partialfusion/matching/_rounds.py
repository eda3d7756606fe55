"""Many short searches on all cores, of which the best is kept, and which Ctrl-C ends without losing it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from ..errors import OptionError
from ..kernels.coupling import Ints

Progress = Callable[[int, int], None]


class Found(NamedTuple):
    """What a search has found so far, and how many rounds that took since it last said so."""

    inertia: float
    labels: Ints
    rounds: int


Search = Iterator[Found]


def best_of(
    searches: Iterable[Search], total: int, *, workers: int | None, on_progress: Progress | None
) -> tuple[Ints, bool]:
    """The labels of the search that found the lowest inertia, the earliest among equals, and whether all of them ended.

    A search is an iterator that does a fraction of a second's work between two results and lets go of the
    interpreter's lock meanwhile. What it finds depends on itself alone, so the number of workers changes nothing.

    Args:
        searches: run in this order, `workers` at a time.
        total: rounds of all searches together, for on_progress(done, total), which is called after every result.
        workers: threads; None for one a core.
        on_progress: runs in the calling thread. A KeyboardInterrupt there or anywhere else ends the search.
    """
    if workers is not None and workers < 1:
        raise OptionError(f"workers={workers}: at least one is needed; None takes every core")
    queue = enumerate(searches)
    best: dict[int, Found] = {}
    running: dict[Future[Found | None], tuple[int, Search]] = {}
    done = 0
    with ThreadPoolExecutor(workers or _cores()) as pool:

        def start(job: tuple[int, Search] | None) -> None:
            if job is not None:
                running[pool.submit(next, job[1], None)] = job

        def collect(finished: Iterable[Future[Found | None]]) -> Iterator[tuple[int, Search] | None]:
            nonlocal done
            for future in finished:
                index, search = running.pop(future)
                found = future.result()
                if found is None:
                    yield next(queue, None)
                else:
                    done += found.rounds
                    best[index] = found
                    yield index, search

        complete = True
        try:
            for _ in range(workers or _cores()):
                start(next(queue, None))
            while running:
                before = done
                for job in list(collect(wait(running, return_when=FIRST_COMPLETED).done)):
                    start(job)
                if on_progress is not None and done > before:
                    on_progress(done, total)
        except KeyboardInterrupt:
            complete = False
            list(collect(wait(running).done))
            if not best:
                raise
    index = min(best, key=lambda i: (best[i].inertia, i))
    return best[index].labels, complete


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
