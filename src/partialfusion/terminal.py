"""What every command shares: errors in one line, examples in the help, a bar while it works, JSON for machines."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, NoReturn, ParamSpec

import typer

from .errors import FusionError, RecipeError
from .progress import Listener, listening

P = ParamSpec("P")

TRACEBACK = "PARTIALFUSION_TRACEBACK"
INTERRUPTED = 130  # the exit code of a process that SIGINT ended, as shells tell it


def examples(*commands: str) -> str:
    """The end of a command's help."""
    return "\n".join(["[bold]Examples[/bold]", *(f"  partialfusion {command}" for command in commands)])


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command that ends in one line on stderr instead of a traceback; a recipe, in one for each mistake."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except FusionError as error:
            _fail(str(error), error)
        except KeyboardInterrupt:
            interrupted()
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), "")
            _fail(f"unexpected {type(error).__name__}: {first} (set {TRACEBACK}=1 to see where)", error)

    return run


def interrupted(kept: str = "") -> NoReturn:
    """End after Ctrl-C, in one line that says what there is of the work."""
    typer.echo(f"error: interrupted{kept and '; '}{kept}", err=True)
    raise typer.Exit(INTERRUPTED) from None


@contextmanager
def working(shown: bool = True) -> Iterator[Listener]:
    """Tells on stderr what is being done and how far it is; silent where nobody watches a terminal.

    What a user's own code prints meanwhile goes to stderr too, so that stdout holds the result alone. What the library
    warns of is a line there, unless nothing is to be shown.
    """
    log, echo = logging.getLogger("partialfusion"), _Echo(logging.WARNING if shown else logging.CRITICAL)
    log.addHandler(echo)
    try:
        with redirect_stdout(sys.stderr), listening(None if shown else False, patience=0.0) as tell:
            yield tell
    finally:
        log.removeHandler(echo)


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
