"""Run the cells of a study that have no result yet, here or on a cluster; every result is stored at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from partialfusion.core.progress import ProgressCallback, reporting

from .cell import Cell, Record, compute, describe, key
from .errors import StudyError
from .executors import executor as executor
from .store import Store

log = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds after which progress is reported again while no result arrives
SHOWN = 3  # failures that an error lists


@dataclass(frozen=True)
class Summary:
    """The outcome of a run.

    Attributes:
        computed: the number of cells that were run and stored.
        reused: the number of cells that were already in the store.
        failed: the number of cells that have no result.
        seconds: wall-clock time of the run.
    """

    computed: int
    reused: int
    failed: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.computed} computed, {self.reused} reused, {self.failed} failed in {self.seconds:.0f} s"


def run(
    cells: Iterable[Cell], store: Store, executor: Executor, *, progress: bool | ProgressCallback | None = None
) -> Summary:
    """Compute the cells that are not in the store, and store every result as it arrives.

    A run that was stopped continues when it is run again. When a cell fails, the others go on. An interrupt cancels
    the cells that have not started; earlier results are kept.

    Args:
        cells: cells of one or more experiments; the same cell may appear several times.
        store: where results are looked up and stored.
        executor: runs the cells, see `executor`; any executor of `concurrent.futures` can be used.
        progress: see `partialfusion.core.progress.reporting`; the fraction is of the cells that are not in the store.

    Raises:
        StudyError: some cells failed, of which the message lists the first; or another run is writing to this store.
    """
    started = time.monotonic()
    unique = {key(cell): cell for cell in cells}
    failures: list[str] = []
    with store.writing(), reporting(progress) as report:
        left = [cell for cell in unique.values() if cell not in store]
        reused, done = len(unique) - len(left), 0
        for arrived in _arrivals(left, executor):
            if arrived is not None:
                cell, future = arrived
                done += 1
                if error := _stored(future, store):
                    failures.append(f"{describe(cell)}: {error}")
            report(f"{reused + done} of {len(unique)} cells", done / len(left))
    summary = Summary(len(left) - len(failures), reused, len(failures), time.monotonic() - started)
    log.info("%s: %s", store.folder, summary)
    if failures:
        raise StudyError(_failed(summary, failures))
    return summary


def _arrivals(cells: Sequence[Cell], executor: Executor) -> Iterator[tuple[Cell, Future[Record]] | None]:
    """Submit all cells and yield each when it has ended, and None while waiting; cancel the rest when closed early."""
    ended: SimpleQueue[Future[Record]] = SimpleQueue()
    running: dict[Future[Record], Cell] = {}
    try:
        for cell in cells:
            future = executor.submit(compute, cell)
            running[future] = cell
            future.add_done_callback(ended.put)
            while not ended.empty():
                yield running.pop(future := ended.get()), future
        while running:
            try:
                future = ended.get(timeout=INTERVAL)
            except Empty:
                yield None
            else:
                yield running.pop(future), future
    finally:
        for future in running:
            future.cancel()


def _stored(future: Future[Record], store: Store) -> str | None:
    """Store the result of a cell; where there is none, return the reason in one line."""
    if future.cancelled():
        return "cancelled because the connection to the workers was lost"
    error = future.exception()
    if error is None:
        store.put(future.result())
        return None
    cause = str(error) if isinstance(error, StudyError) else f"{type(error).__name__}: {error}"
    log.info("%s", cause)
    return cause.partition("\n")[0]


def _failed(summary: Summary, failures: Sequence[str]) -> str:
    """The message about failed cells."""
    more = [f"and {len(failures) - SHOWN} more"] if len(failures) > SHOWN else []
    lines = "\n".join(f"  {line}" for line in [*failures[:SHOWN], *more])
    return f"{summary}; the computed results are stored, run again to retry the others:\n{lines}"
