"""Run the cells of a study that have no result yet, here or on a cluster, and lose nothing that was computed."""

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

TICK = 1.0  # seconds after which progress is told again, though nothing arrived
SHOWN = 3  # failures that an error spells out


@dataclass(frozen=True)
class Summary:
    """What a run did.

    Attributes:
        computed: cells that were run and are now in the store.
        reused: cells that were in the store already.
        failed: cells that have no result.
        seconds: wall clock of the run.
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
    """Compute the cells that the store lacks, and write every result as it arrives.

    A run that was stopped is taken up by running it again. When a cell fails, the others go on. An interrupt
    cancels the cells that have not begun; what arrived before is kept.

    Args:
        cells: those of one or more experiments; the same cell may appear several times.
        store: where the results are, and where they go.
        executor: runs the cells, see `executor`; any other of `concurrent.futures` will do as well.
        progress: see `progress.listening`; the share is that of the cells which had to be computed.

    Raises:
        StudyError: some cells failed; the message names the first of them. Or another run writes to this store.
    """
    started = time.monotonic()
    unique = {key(cell): cell for cell in cells}
    failures: list[str] = []
    with store.writing(), reporting(progress) as tell:
        left = [cell for cell in unique.values() if cell not in store]
        reused, done = len(unique) - len(left), 0
        for arrived in _arrivals(left, executor):
            if arrived is not None:
                cell, future = arrived
                done += 1
                if error := _keep(future, store):
                    failures.append(f"{describe(cell)}: {error}")
            tell(f"{reused + done} of {len(unique)} cells", done / len(left))
    summary = Summary(len(left) - len(failures), reused, len(failures), time.monotonic() - started)
    log.info("%s: %s", store.folder, summary)
    if failures:
        raise StudyError(_report(summary, failures))
    return summary


def _arrivals(cells: Sequence[Cell], executor: Executor) -> Iterator[tuple[Cell, Future[Record]] | None]:
    """Submit all cells and yield each when it has ended, and None now and then; cancel the rest when left early."""
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
                future = ended.get(timeout=TICK)
            except Empty:
                yield None
            else:
                yield running.pop(future), future
    finally:
        for future in running:
            future.cancel()


def _keep(future: Future[Record], store: Store) -> str | None:
    """Store what a cell computed; or why there is nothing to store, in one line."""
    if future.cancelled():
        return "cancelled, as the connection to the workers was lost"
    error = future.exception()
    if error is None:
        store.put(future.result())
        return None
    cause = str(error) if isinstance(error, StudyError) else f"{type(error).__name__}: {error}"
    log.error("%s", cause)
    return cause.partition("\n")[0]


def _report(summary: Summary, failures: Sequence[str]) -> str:
    """The message about cells that failed."""
    more = [f"and {len(failures) - SHOWN} more"] if len(failures) > SHOWN else []
    lines = "\n".join(f"  {line}" for line in [*failures[:SHOWN], *more])
    return f"{summary}; what was computed is stored, run again to try the others:\n{lines}"
