"""The command line: parses arguments, calls the library, prints what it returns."""

import os
import sys

# Each registers its command; this is their order in the help.
from . import bench, convert, demo, frontier, fuse, prune, refit, run, study, trace
from .root import app
from .terminal import describe_failure

__all__ = ["app", "bench", "convert", "demo", "frontier", "fuse", "main", "prune", "refit", "run", "study", "trace"]


def main() -> None:
    """The entry point of the `partialfusion` command."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:  # of the output itself: help on a full disk, or what was still to be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would try to write it again
        print(f"error: {describe_failure(error)}", file=sys.stderr)
        sys.exit(1)
