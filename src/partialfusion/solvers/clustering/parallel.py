"""Many short searches on all cores, of which the best is kept, and which Ctrl-C ends without losing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import NamedTuple

from ...core.arrays import Ints
from ...core.machine import available_cores
from ...errors import OptionError

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
    pool = _Workers(searches)
    threads = [Thread(target=pool.work, daemon=True) for _ in range(workers or available_cores())]
    best: dict[int, Found] = {}
    done, complete = 0, True
    try:
        for thread in threads:
            thread.start()
        ended = 0
        while ended < len(threads):
            result = pool.results.get()
            if result is None:
                ended += 1
            elif isinstance(result, BaseException):
                raise result
            else:
                best.update([result])
                done += result[1].rounds
                if on_progress is not None and result[1].rounds:
                    on_progress(done, total)
    except KeyboardInterrupt:
        complete = False
    finally:
        pool.stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    best.update(pool.left())
    if not best:
        raise KeyboardInterrupt
    index = min(best, key=lambda i: (best[i].inertia, i))
    return best[index].labels, complete


class _Workers:
    """Threads that take one search after another and report through a queue.

    The calling thread waits on the queue alone: an interrupt may arrive at any moment and leaves no lock behind.
    """

    def __init__(self, searches: Iterable[Search]) -> None:
        self.waiting, self.lock, self.stop = enumerate(searches), Lock(), Event()
        self.results: SimpleQueue[tuple[int, Found] | BaseException | None] = SimpleQueue()

    def work(self) -> None:
        """Search until nothing is left to do; None is the last report."""
        try:
            while not self.stop.is_set():
                with self.lock:
                    index, search = next(self.waiting, (0, None))
                if search is None:
                    break
                for found in search:
                    self.results.put((index, found))
                    if self.stop.is_set():
                        break
        except BaseException as error:
            self.results.put(error)
        finally:
            self.results.put(None)

    def left(self) -> Iterator[tuple[int, Found]]:
        """What was reported and not yet read; the threads have ended."""
        while not self.results.empty():
            result = self.results.get()
            if isinstance(result, tuple):
                yield result
