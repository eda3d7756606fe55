"""What every command shares: errors in one line, examples in the help, a bar while it works, JSON for machines."""

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
_pressed: list[int] = []  # signals since the command began
INTERRUPTED = 130  # the exit code of a process that SIGINT ended, as shells tell it


def examples(*commands: str) -> str:
    """The end of a command's help."""
    return "\n".join(["[bold]Examples[/bold]", *(f"  partialfusion {command}" for command in commands)])


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command that ends in one line on stderr instead of a traceback; a recipe, in one for each mistake."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _noting_interrupts():
                command(*args, **kwargs)
        except FusionError as error:
            _fail(str(error), error)
        except KeyboardInterrupt:
            interrupted()
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if _pressed and not os.environ.get(TRACEBACK):
                interrupted()
            first = next(iter(str(error).strip().splitlines()), "")
            _fail(f"unexpected {type(error).__name__}: {first} (set {TRACEBACK}=1 to see where)", error)

    return run


@contextmanager
def _noting_interrupts() -> Iterator[None]:
    """Remember that Ctrl-C was pressed: code in between may swallow the exception, and go on or fail strangely."""

    def note(number: int, frame: object) -> NoReturn:
        _pressed.append(number)
        raise KeyboardInterrupt

    _pressed.clear()
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def interrupted(kept: str = "") -> NoReturn:
    """End after Ctrl-C, in one line that says what there is of the work."""
    typer.echo(f"error: interrupted{kept and '; '}{kept}", err=True)
    raise typer.Exit(INTERRUPTED) from None


@contextmanager
def working(shown: bool = True) -> Iterator[ProgressCallback]:
    """Tells on stderr what is being done and how far it is; silent where nobody watches a terminal.

    What a user's own code prints meanwhile goes to stderr too, so that stdout holds the result alone. What the library
    warns of is a line there, unless nothing is to be shown. After Ctrl-C the next step is not begun.
    """
    log, echo = logging.getLogger("partialfusion"), _Echo(logging.WARNING if shown else logging.CRITICAL)
    log.addHandler(echo)
    try:
        with redirect_stdout(sys.stderr), reporting(None if shown else False, patience=0.0) as tell:
            yield Stopping(tell)
    finally:
        log.removeHandler(echo)


@dataclass(frozen=True)
class Stopping:
    """A listener that ends the work if Ctrl-C was pressed and swallowed; `plain` lets it go on, where that is meant."""

    plain: ProgressCallback

    def __call__(self, label: str, done: float) -> None:
        if _pressed:
            raise KeyboardInterrupt
        self.plain(label, done)


class _Echo(logging.Handler):
    """Warnings as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"warning: {' '.join(record.getMessage().split())}", err=True)


def _fail(message: str, error: Exception) -> NoReturn:
    if os.environ.get(TRACEBACK):
        raise error
    for problem in error.problems if isinstance(error, RecipeError) else [message]:
        typer.echo(f"error: {' '.join(line.strip() for line in problem.splitlines())}", err=True)
    raise typer.Exit(1) from error


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))
