"""The command line: parses arguments, calls the library, prints what it returns."""

from .root import app  # noqa: I001

# Each registers its command; this is their order in the help.
from . import demo
from . import trace
from . import fuse
from . import prune
from . import frontier
from . import refit
from . import convert
from . import bench
from . import run
from . import study


__all__ = ["app", "bench", "convert", "demo", "frontier", "fuse", "main", "prune", "refit", "run", "study", "trace"]


def main() -> None:
    """The entry point of the `partialfusion` command."""
    app()
