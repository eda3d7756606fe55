"""Progress of long work: a callback, or a bar on the terminal that appears only where it is needed."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ProgressCallback = Callable[[str, float], None]  # the current step, and the fraction of the work that is done

log = logging.getLogger(__name__)

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
