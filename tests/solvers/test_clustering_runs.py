"""Clustering as a computation: seeds, threads, progress, interrupts, refusals."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np
import pytest
from clusterings import ON_MATRICES, blobs, covariance, inertia

from partialfusion.errors import OptionError
from partialfusion.solvers import (
    Clustering,
    cluster,
    exchange,
    lloyd,
    squared_distances,
    stochastic_ward,
    ward,
    zip_pairs,
)


@pytest.mark.parametrize("solve", [stochastic_ward, lloyd, cluster])
def test_seed_decides_and_workers_do_not(solve: Callable[..., Clustering]) -> None:
    squared = squared_distances(blobs(90, d=30, centres=60))
    found = [solve(squared, 50, seed=3, workers=w) for w in (1, 2, 5, None)]
    assert all((f.labels == found[0].labels).all() and f.inertia == found[0].inertia for f in found)
    if solve is lloyd:
        assert any((solve(squared, 50, seed=s).labels != found[0].labels).any() for s in range(3))


def test_more_restarts_are_never_worse() -> None:
    squared = squared_distances(blobs(90, d=30, centres=60))
    for solve in (stochastic_ward, lloyd):
        found = [solve(squared, 50, restarts=r).inertia for r in (1, 10, 100, 500)]
        assert found == sorted(found, reverse=True)
        assert found[-1] < found[0]


@pytest.mark.parametrize("solve", [stochastic_ward, lloyd, cluster])
def test_an_interrupt_keeps_the_best_so_far(solve: Callable[..., Clustering]) -> None:
    x = blobs(300, d=30, centres=100)
    options = {"effort": 1e6} if solve is cluster else {"restarts": 10**8}
    seen: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if len(seen) == 3:
            raise KeyboardInterrupt

    found = solve(squared_distances(x), 200, on_progress=stop, workers=2, **options)
    assert not found.complete
    assert len(seen) == 3
    assert seen == sorted(seen)
    assert set(found.labels) == set(range(200))
    assert found.inertia == pytest.approx(inertia(x, found.labels), rel=1e-9)


# a program started in the background may inherit that SIGINT is ignored: the handler is set first
INTERRUPTED = """
import _thread, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
import partialfusion, partialfusion.solvers
assert "numba" not in sys.modules, "loaded before it is needed"
import numpy as np
from partialfusion.solvers import squared_distances, stochastic_ward
squared = squared_distances(np.random.default_rng(0).normal(size=(100, 9)))
assert "numba" not in sys.modules, "loaded before it is needed"
stochastic_ward(squared, 60, restarts=1)
threading.Timer(0.5, _thread.interrupt_main).start()
found = stochastic_ward(squared, 60, restarts=10**9)
assert not found.complete and found.inertia > 0
"""


def test_numba_is_loaded_when_needed_and_ctrl_c_keeps_the_best() -> None:
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, timeout=120)


def test_an_interrupt_before_anything_was_found_is_passed_on() -> None:
    from partialfusion.solvers.clustering.parallel import best_of

    def interrupted() -> Iterator[object]:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        best_of([interrupted()], 1, workers=1, on_progress=None)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("solve", "options", "total"),
    [(stochastic_ward, {"restarts": 999}, 999), (lloyd, {"restarts": 77}, 77), (cluster, {"effort": 2.0}, 480)],
)
def test_progress_counts_up_to_the_total(solve: Callable[..., Clustering], options: dict[str, int], total: int) -> None:
    seen: list[tuple[int, int]] = []
    assert solve(squared_distances(blobs(60)), 30, on_progress=lambda *p: seen.append(p), **options).complete
    done = [d for d, _ in seen]
    assert done == sorted(set(done))
    assert seen[-1] == (total, total)


def test_functions_compile_where_nothing_can_be_stored() -> None:
    """A function without a file has no place in the cache."""
    from partialfusion.solvers._jit import fast

    names: dict[str, Callable[[int], int]] = {}
    exec("def double(x):\n    return 2 * x", names)
    assert fast(names["double"])(21) == 42


def test_functions_compile_on_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from partialfusion.solvers._jit import fast

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    triple = fast(_triple)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        assert triple(14) == 42
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size]


def _triple(x: int) -> int:
    return 3 * x


def test_the_cache_is_renewed_when_any_compiled_part_changes() -> None:
    """Numba looks at the file of a function alone; one that it calls may be in another file."""
    from partialfusion.solvers._jit import SOURCES, STAMP
    from partialfusion.solvers.clustering._ward import restarts

    names = {p.name for p in SOURCES}
    assert {"_jit.py", "_assignment.py", "_ward.py", "_lloyd.py", "_local_search.py", "_state.py"} <= names
    assert len(STAMP) == len(SOURCES)
    assert restarts._cache._cache_file._source_stamp == STAMP


def test_bad_input_is_refused() -> None:
    x = blobs(10)
    squared = squared_distances(x)
    bad = x.copy()
    bad[3, 2] = np.nan
    with pytest.raises(OptionError, match=r"entry \(3, 2\) is nan"):
        squared_distances(bad)
    with pytest.raises(OptionError, match="at least one channel"):
        squared_distances(np.empty((0, 3)))
    with pytest.raises(OptionError, match="overflow"):
        squared_distances(1e200 * x)
    bad = squared.copy()
    bad[3, 2] = np.nan
    for solve in ON_MATRICES.values():
        with pytest.raises(OptionError, match=r"entry \(3, 2\) is nan"):
            solve(bad, 4)
        with pytest.raises(OptionError, match="masses have shape"):
            solve(squared, 4, np.ones(9))
        with pytest.raises(OptionError, match="negative"):
            solve(squared, 4, -np.ones(10))
        with pytest.raises(OptionError, match="all zero"):
            solve(squared, 4, np.zeros(10))
        with pytest.raises(OptionError, match="square matrix with at least one row"):
            solve(np.empty((0, 0)), 1)
        with pytest.raises(OptionError, match="square"):
            solve(np.zeros((3, 4)), 2)
    for solve in (ward, stochastic_ward, lloyd, cluster, zip_pairs):
        for k in (0, 11, -1, 2.5):
            with pytest.raises(OptionError, match="k must be 1 … 10"):
                solve(squared, k)
    for solve in (stochastic_ward, lloyd):
        with pytest.raises(OptionError, match="restarts"):
            solve(squared, 4, restarts=0)
    with pytest.raises(OptionError, match="workers"):
        cluster(squared, 4, workers=0)
    with pytest.raises(OptionError, match="effort"):
        cluster(squared, 4, effort=-1)
    with pytest.raises(OptionError, match="one for each channel"):
        exchange(squared, np.zeros(9, int))
    with pytest.raises(OptionError, match="one for each channel"):
        exchange(squared, np.zeros(10))
    with pytest.raises(OptionError, match="0 … 3"):
        lloyd(squared, 4, start=np.arange(10))
    with pytest.raises(OptionError, match="one for each channel"):
        lloyd(squared, 4, start=x[:3])
    with pytest.raises(OptionError, match="needs groups"):
        zip_pairs(covariance(x), 4, across=True)
    with pytest.raises(OptionError, match="groups have shape"):
        zip_pairs(covariance(x), 4, across=True, groups=np.zeros(9))
