"""How the compiled parts of the solvers are compiled.

The compiled part of `solver.py` is `_solver.py` beside it. Only modules whose name begins with an underscore import
Numba, and they are imported at the first use: loading takes a good part of a second. Compiling takes some seconds,
once; the result stays in __pycache__.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered, which lets loops run on whole vectors. Infinity stays legal: it marks what is not there.
FAST: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "nnan"}}

# Numba compiles a function anew when its file has changed, not when those it calls have: all their files count as one.
SOURCES = sorted(Path(__file__).parent.rglob("_*.py"))
STAMP = tuple((p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in SOURCES)


def fast(function: Function) -> Function:
    """Compile a function on arrays for speed."""
    return _compiled(function, FAST)


def exact(function: Function) -> Function:
    """Compile a function whose comparisons count on sums as they are written."""
    return _compiled(function, {})


def bounds(function: Function) -> Function:
    """Compile a function of sums as they are written and of least values, which may be sought on whole vectors."""
    return _compiled(function, {"fastmath": {"nnan", "nsz"}})


def _compiled(function: Function, options: dict[str, Any]) -> Function:
    """Machine code, free of the interpreter's lock, and kept on disk where that is possible."""
    try:
        compiled: Any = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no directory for the cache can be written
        compiled = numba.njit(nogil=True, **options)(function)
    cache: Any = getattr(compiled, "_cache", None)
    if (stored := getattr(cache, "_cache_file", None)) is not None:
        stored._source_stamp = STAMP
        cache.save_overload = _if_possible(cache.save_overload)
    found: Function = compiled
    return found


def _if_possible(save: Callable[..., None]) -> Callable[..., None]:
    """Machine code that cannot be stored, as on a full disk, is used all the same, and compiled again next time."""

    def saved(*args: Any) -> None:
        try:
            save(*args)
        except OSError as error:
            log.info("compiled code cannot be stored: %s", error)

    return saved
