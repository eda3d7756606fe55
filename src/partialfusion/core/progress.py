"""Progress of long work: a callback, or a bar on the terminal that appears only where it is needed."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ProgressCallback = Callable[[str, float], None]  # the current step, and the fraction of the work that is done

log = logging.getLogger(__name__)

_listener: ContextVar[Callable[[float], None] | None] = ContextVar("listener", default=None)

EVERY = 10.0  # seconds of processor time between two lines of the log, whatever else the machine does
PATIENCE = 1.0  # seconds before a bar appears
WINDOW = 3600.0  # seconds of past progress that the remaining time is estimated from; steps may take minutes


@contextmanager
def reporting(progress: bool | ProgressCallback | None, *, patience: float = PATIENCE) -> Iterator[ProgressCallback]:
    """The progress callback for a user's `progress` option.

    Args:
        progress: a callback, True for a bar, False for no output; None shows a bar where stderr is a terminal, and
            elsewhere writes to the log.
        patience: seconds before the bar appears.
    """
    if callable(progress):
        yield progress
    elif progress or (progress is None and sys.stderr.isatty()):
        with _ProgressBar(patience) as bar:
            yield bar
    else:
        yield silent if progress is False else _ProgressLog()


def silent(label: str, done: float) -> None:
    """A progress callback that does nothing."""


@contextmanager
def hearing(listener: Callable[[float], None] | None) -> Iterator[None]:
    """Pass every amount that `advance` is told to a function, or to nobody; who does the work need not know it."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def advance(amount: float) -> None:
    """Tell whoever listens that so much more of the work is done, in bytes or whatever it is measured in."""
    listener = _listener.get()
    if listener is not None:
        listener(amount)


class Amount:
    """How much of some work is done, which never becomes less: what is heard from tasks while they run in this thread,
    and all of a task when it ends, wherever it ran.

    Args:
        total: all of the work.
        report: called with the fraction that is done.
    """

    def __init__(self, total: float, report: Callable[[float], None]) -> None:
        self.total, self.report = total, report
        self._ended = self._heard = 0.0
        self._most = -1.0

    def __call__(self, amount: float) -> None:
        self._heard += amount
        self.tell()

    def end(self, amount: float) -> None:
        """A task of this amount has ended."""
        self._ended += amount
        self._heard = max(0.0, self._heard - amount)
        self.tell()

    def tell(self) -> None:
        """Report the fraction, unless it was reported already."""
        done = min(1.0, (self._ended + self._heard) / self.total) if self.total else 1.0
        if done > self._most:
            self._most = done
            self.report(done)


class _ProgressLog:
    """Says in the log now and then how far long work has come; work that is over soon is not mentioned."""

    def __init__(self) -> None:
        self.said = time.process_time()

    def __call__(self, label: str, done: float) -> None:
        if time.process_time() - self.said >= EVERY:
            self.said = time.process_time()
            log.info("%s (%.0f %% done)", label, 100 * done)


class _ProgressBar:
    """A progress bar on stderr with the remaining time; work that is over within `patience` never shows it."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.started = time.monotonic()
        self.shown = False

    def __enter__(self) -> _ProgressBar:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=Console(stderr=True), speed_estimate_period=WINDOW, transient=True)
        self.task = self.bar.add_task("", total=1.0)
        return self

    def __call__(self, label: str, done: float) -> None:
        if not self.shown and time.monotonic() - self.started >= self.patience:
            self.shown = True
            self.bar.start()
        self.bar.update(self.task, description=label, completed=done)

    def __exit__(self, *error: object) -> None:
        if self.shown:
            self.bar.stop()
