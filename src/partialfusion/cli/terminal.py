"""How every command behaves in a terminal: one-line errors, Ctrl-C, a progress bar, JSON output."""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any, NoReturn, ParamSpec

import typer

from ..core.progress import ProgressCallback, reporting
from ..errors import FusionError, RecipeError

P = ParamSpec("P")

TRACEBACK = "PARTIALFUSION_TRACEBACK"
INTERRUPTED = 130  # the exit code that shells report for a process ended by SIGINT


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command that ends with one line on stderr instead of a traceback; a recipe, with one line per error."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _interrupts.watched():
                _check_current_folder()
                command(*args, **kwargs)
        except FusionError as error:
            _fail(str(error), error)
        except KeyboardInterrupt:
            interrupted()
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except OSError as error:
            _fail(describe_failure(error), error)
        except Exception as error:
            if _interrupts.pressed and not os.environ.get(TRACEBACK):
                interrupted()
            first = next(iter(str(error).strip().splitlines()), "")
            _fail(f"unexpected {type(error).__name__}: {first} (set {TRACEBACK}=1 to see the traceback)", error)

    return run


def _check_current_folder() -> None:
    """Libraries that a command imports end the process where the current folder is gone."""
    try:
        os.getcwd()
    except OSError as error:
        raise FusionError("the current folder does not exist any more: change to another one") from error


def describe_failure(error: OSError) -> str:
    """What the system refuses; an error without the name of a file is about what is printed."""
    where = "standard output" if error.filename is None else os.fsdecode(error.filename)
    return f"{where}: {error.strerror or error}"


class _Interrupts:
    """Whether Ctrl-C was pressed since the command began.

    Code that a command calls may swallow KeyboardInterrupt and go on, or fail with another error.
    """

    def __init__(self) -> None:
        self.pressed = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note SIGINT while a command runs, where Python's usual handler is in place."""
        self.pressed = False
        usual = signal.default_int_handler
        if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
            yield
            return
        signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)

    def _note(self, number: int, frame: object) -> NoReturn:
        self.pressed = True
        raise KeyboardInterrupt


_interrupts = _Interrupts()  # a process runs one command at a time


def interrupted(kept: str = "") -> NoReturn:
    """End after Ctrl-C, with one line that says which results were kept."""
    typer.echo(f"error: interrupted{kept and '; '}{kept}", err=True)
    raise typer.Exit(INTERRUPTED) from None


@contextmanager
def working(shown: bool = True) -> Iterator[ProgressCallback]:
    """A progress callback that draws a bar on stderr, where that is a terminal, and elsewhere a line now and then.

    What the user's code prints meanwhile goes to stderr too, so that stdout holds the result alone. Warnings of the
    library become lines on stderr, unless nothing is to be shown. After Ctrl-C no further step is started.
    """
    log, echo = logging.getLogger("partialfusion"), _Echo(logging.INFO if shown else logging.CRITICAL)
    log.addHandler(echo)
    steps = logging.getLogger(reporting.__module__)
    level = steps.level
    steps.setLevel(logging.INFO)
    try:
        with redirect_stdout(sys.stderr), reporting(None if shown else False, patience=0.0) as callback:
            yield StopOnInterrupt(callback)
    finally:
        log.removeHandler(echo)
        steps.setLevel(level)


@dataclass(frozen=True)
class StopOnInterrupt:
    """A progress callback that stops the work if Ctrl-C was pressed and the exception was swallowed.

    Attributes:
        callback: the callback that reports; on its own it lets the work go on.
    """

    callback: ProgressCallback

    def __call__(self, label: str, done: float) -> None:
        if _interrupts.pressed:
            raise KeyboardInterrupt
        self.callback(label, done)


class _Echo(logging.Handler):
    """Warnings and progress as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = "warning: " if record.levelno >= logging.WARNING else ""
        typer.echo(f"{kind}{' '.join(record.getMessage().split())}", err=True)


def _fail(message: str, error: Exception) -> NoReturn:
    if os.environ.get(TRACEBACK):
        raise error
    for problem in error.problems if isinstance(error, RecipeError) else [message]:
        typer.echo(f"error: {' '.join(line.strip() for line in problem.splitlines())}", err=True)
    raise typer.Exit(1) from error


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))
