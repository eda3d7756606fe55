"""Progress of long work: a callback, or a bar on the terminal that only appears when it is needed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ProgressCallback = Callable[[str, float], None]  # what is being done, and the share that is done

PATIENCE = 1.0  # seconds of silence before a bar appears
MEMORY = 3600.0  # seconds that the time left is estimated from; steps may take minutes


@contextmanager
def reporting(progress: bool | ProgressCallback | None, *, patience: float = PATIENCE) -> Iterator[ProgressCallback]:
    """The listener that a user's option means.

    Args:
        progress: a function to call, False for silence, True for a bar; None shows a bar where stderr is a terminal.
        patience: seconds of silence before the bar appears.
    """
    if callable(progress):
        yield progress
    elif progress or (progress is None and sys.stderr.isatty()):
        with _Bar(patience) as bar:
            yield bar
    else:
        yield silent


def silent(label: str, done: float) -> None:
    """A listener that does nothing."""


class _Bar:
    """A line on stderr with the time left; short work never shows it."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.started = time.monotonic()
        self.shown = False

    def __enter__(self) -> _Bar:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=Console(stderr=True), speed_estimate_period=MEMORY, transient=True)
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
