"""The command line: parses what was typed, calls the library, prints what it returns."""

from . import demo, fuse, study, trace  # noqa: F401  each registers its command, in the order of the help
from .root import app

__all__ = ["app", "main"]


def main() -> None:
    """The entry point of the `partialfusion` command."""
    app()
