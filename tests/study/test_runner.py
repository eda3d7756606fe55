"""The runner: every cell once, whatever is killed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from partialfusion.errors import OptionError
from partialfusion_study.cell import compute, config, key, kind
from partialfusion_study.errors import StudyError
from partialfusion_study.executors import Inline
from partialfusion_study.runner import executor, run
from partialfusion_study.store import Store, signed
from study.sample_cells import Broken, Square, alive, calls, lines, processes, some_wait, squares, stored, wait_for


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """Two processes on two cores, for several tests: a process takes seconds to load torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setattr("partialfusion_study.executors.available_cores", lambda: 2)
        with executor(2) as found:
            folder = tmp_path_factory.mktemp("start")
            both = [found.submit(compute, cell) for cell in squares(2, folder, waits=True)]
            wait_for(lambda: calls(folder) == {0: 1, 1: 1})
            (folder / "go").touch()
            assert [future.result().result["square"] for future in both] == [0, 1]
            yield found


@dataclass(frozen=True)
class Inner:
    width: int


@dataclass(frozen=True)
class Other:
    width: int


@dataclass(frozen=True)
class Outer:
    rate: float
    inner: Inner | Other
    steps: tuple[int, ...] = (1, 2)

    def run(self) -> dict[str, Any]:
        return {}


def test_the_key_is_of_the_content_alone() -> None:
    """Written down, so it holds in every process; the runs that are taken up below rely on it too."""
    content = '{"config": {"inner": {"class": "Inner", "width": 3}, "rate": 0.4, "steps": [1, 2]}, "kind": "Outer"}'
    assert key(Outer(inner=Inner(3), rate=0.4)) == hashlib.sha256(content.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Renamed:
    stored_as: ClassVar[str] = "Outer"

    speed: float = field(metadata={"stored_as": "rate"})
    inner: Inner | Other
    steps: tuple[int, ...] = (1, 2)

    def run(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Derived(Renamed):
    """A kind of its own."""


def test_renamed_classes_and_fields_keep_their_key() -> None:
    assert key(Renamed(0.4, Inner(3))) == key(Outer(0.4, Inner(3)))
    assert config(Renamed(0.4, Renamed(1.0, Inner(3)))) == config(Outer(0.4, Outer(1.0, Inner(3))))  # type: ignore[arg-type]
    assert kind(Derived(0.4, Inner(3))) == "Derived"


@dataclass(frozen=True)
class Extended:
    stored_as: ClassVar[str] = "Outer"

    rate: float
    inner: Inner | Other
    steps: tuple[int, ...] = (1, 2)
    basis: str = field(default="usual", metadata={"added": True})

    def run(self) -> dict[str, Any]:
        return {}


def test_an_added_field_keeps_the_key_while_it_has_its_default() -> None:
    assert key(Extended(0.4, Inner(3))) == key(Extended(0.4, Inner(3), basis="usual")) == key(Outer(0.4, Inner(3)))
    assert config(Extended(0.4, Inner(3), basis="other")) == config(Outer(0.4, Inner(3))) | {"basis": "other"}


def test_the_key_tells_everything_apart() -> None:
    cells = [
        Outer(r, i, s) for r in (1, 1.0, True, -1.0) for i in (Inner(3), Other(3), Inner(4)) for s in ((), (1,), (1, 2))
    ]
    assert len({key(c) for c in cells}) == len(cells)
    assert {len(key(c)) for c in cells} == {32}
    with pytest.raises(StudyError, match="Outer.rate is nan"):
        key(Outer(float("nan"), Inner(3)))
    with pytest.raises(StudyError, match=r"Outer.steps\[1\] is of type set"):
        key(Outer(1.0, Inner(3), (1, set())))  # type: ignore[arg-type]


def test_results_are_stored_once_and_reused(trace: Path, results: Path) -> None:
    cells = squares(5, trace)
    seen: list[tuple[str, float]] = []
    first = run([*cells[:3], cells[0], replace(cells[1])], Store(results), Inline())
    assert (first.computed, first.reused, first.failed) == (3, 0, 0)
    again = run(cells, Store(results), Inline(), progress=lambda *p: seen.append(p))
    assert (again.computed, again.reused, again.failed) == (2, 3, 0)
    assert calls(trace) == dict.fromkeys(range(5), 1)
    assert stored(results) == list(range(5))
    assert seen == [("4 of 5 cells", 0.5), ("5 of 5 cells", 1.0)]
    assert [Store(results)[c]["square"] for c in cells] == [0, 1, 4, 9, 16]
    line = lines(results)[0]
    assert list(line) == sorted(line)
    assert line["key"] == key(cells[0])
    assert line["config"] == {"number": 0, "folder": str(trace), "seconds": 0.0, "deaths": 0, "waits": False}
    assert {"cpu", "cores", "torch"} <= set(line["machine"])
    with pytest.raises(StudyError, match=r'no result of Square \{.*"number": 77'):
        Store(results)[Square(77, "")]


@pytest.mark.parametrize("where", ["here", "pool"])
def test_a_failure_does_not_stop_the_others(where: str, pool: Executor, trace: Path, results: Path) -> None:
    cells = [Broken("raises"), *squares(3, trace), Broken("nan"), Broken("object"), Broken("unknown")]
    with pytest.raises(StudyError) as error:
        run(cells, Store(results), pool if where == "pool" else Inline())
    text = str(error.value)
    assert text.startswith("3 computed, 0 reused, 4 failed")
    assert "and 1 more" in text
    causes = [
        'Broken {"how": "raises"}: LocalError: out of luck',
        "result.loss[1] is nan: only finite numbers",
        "result.loss is of type object",
        "KeyError: 'unknown'",
    ]
    assert sum(cause in text for cause in causes) == 3
    assert stored(results) == [0, 1, 2]
    assert not (results / "Broken.jsonl").exists()


def test_each_process_takes_its_share_of_the_cores(pool: Executor, trace: Path, results: Path) -> None:
    cells, store = squares(4, trace), Store(results)
    run(cells, store, pool)
    assert {store[cell]["threads"] for cell in cells} == {1}
    assert "OMP_NUM_THREADS" not in os.environ


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(OptionError, match="0 or more"), executor(-1):
        pass
    with pytest.raises(OptionError, match="exclude each other"), executor(2, "tcp://127.0.0.1:1"):
        pass


# ---- what is killed -------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_costs_nothing(pool: Executor, trace: Path, results: Path) -> None:
    cells = squares(12, trace, seconds=0.2)
    killed: list[int] = []

    def kill(label: str, done: float) -> None:
        if not killed and len(processes(trace)) == 2:
            for process in processes(trace):
                os.kill(process, signal.SIGINT)  # which is not for them
            killed.append(min(processes(trace)))
            os.kill(killed[0], signal.SIGKILL)

    summary = run(cells, Store(results), pool, progress=kill)
    assert killed
    assert (summary.computed, summary.failed) == (12, 0)
    assert stored(results) == list(range(12))
    assert sum(calls(trace).values()) <= 13
    assert len(processes(trace)) == 3


def test_a_cell_that_kills_its_workers_is_the_only_failure(pool: Executor, trace: Path, results: Path) -> None:
    cells = squares(6, trace)
    cells[1] = replace(cells[1], deaths=3)
    with pytest.raises(StudyError, match=r'"number": 1,.*died 3 times.*exit code -9.*memory'):
        run(cells, Store(results), pool)
    assert stored(results) == [0, 2, 3, 4, 5]
    assert calls(trace) == {0: 1, 1: 3, 2: 1, 3: 1, 4: 1, 5: 1}


def test_processes_that_cannot_start_are_not_tried_for_every_cell(
    trace: Path, results: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("partialfusion_study.executors._serve", sys.exit)
    with executor(1) as found, pytest.raises(StudyError, match=r"50 failed(.|\n)*exit code 1.*__main__(.|\n)*47 more"):
        run(squares(50, trace), Store(results), found)
    assert capfd.readouterr().err.count("Connection") == 1


RUN = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from study.sample_cells import some_wait
from partialfusion_study.runner import executor, run
from partialfusion_study.store import Store, signed
if __name__ == "__main__":
    results, trace = map(Path, sys.argv[1:])
    with executor(1) as found:
        run(some_wait(trace), Store(results), found)
"""


@pytest.fixture
def program(tmp_path: Path, results: Path, trace: Path) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own, which may inherit that SIGINT is ignored."""
    script = tmp_path / "program.py"
    script.write_text(RUN)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(results), str(trace)]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_stopped_is_taken_up(
    program: subprocess.Popen[str], number: int, results: Path, trace: Path
) -> None:
    """The worker is in the middle of a cell that would never end."""
    wait_for(lambda: calls(trace).get(5) == 1)
    wait_for(lambda: len(lines(results)) == 5)
    if number == signal.SIGINT:  # to the whole group, as a terminal sends it
        os.killpg(program.pid, number)
    else:
        program.kill()
    _, errors = program.communicate(timeout=120)
    assert program.returncode == -number
    if number == signal.SIGINT:
        assert errors.count("Traceback") == errors.count("KeyboardInterrupt") == 1
    wait_for(lambda: not any(alive(p) for p in processes(trace)))
    assert stored(results) == list(range(5))

    (trace / "go").touch()
    summary = run(some_wait(trace), Store(results), Inline())
    assert (summary.computed, summary.reused) == (5, 5)
    assert stored(results) == list(range(10))
    assert calls(trace) == {n: 2 if n == 5 else 1 for n in range(10)}


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", ['{"key": "ab', '{"key": "ab"}\n', "\0\0\0\n", "{}", "\xe9", "[" * 100_000 + "\n"])
def test_a_torn_last_line_does_not_count_and_is_kept_aside(
    tail: str, trace: Path, results: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = squares(3, trace)
    run(cells[:2], Store(results), Inline())
    file = results / "Square.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + tail.encode("latin-1"))
    store = Store(results)
    assert cells[1] in store
    assert "Square.jsonl, line 3 does not count" in caplog.text
    assert file.read_bytes() == whole + tail.encode("latin-1")  # reading changes nothing
    run(cells, store, Inline())
    assert file.read_bytes().startswith(whole)
    assert (results / "Square.damaged").read_bytes() == tail.rstrip("\n").encode("latin-1") + b"\n"
    assert stored(results) == [0, 1, 2]


def test_a_changed_number_does_not_count(trace: Path, results: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever byte of a line is changed: the result is the same, or it does not count and its line is named."""
    cells = squares(3, trace)
    run(cells, Store(results), Inline())
    file = results / "Square.jsonl"
    whole = file.read_bytes()
    records = [Store(results).record(c) for c in cells]
    second = whole.index(b"\n") + 1
    for place in range(second, whole.index(b"\n", second), 7):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        caplog.clear()
        store = Store(results)
        assert [store.record(cells[k]) == records[k] for k in (0, 2)] == [True, True]
        assert cells[1] not in store
        assert "Square.jsonl, line 2 does not count" in caplog.text
    store.put(records[1])
    assert (results / "Square.damaged").read_bytes() in bytes(changed)
    assert file.read_bytes().splitlines() == [whole.splitlines()[k] for k in (0, 2, 1)]
    assert stored(results) == [0, 1, 2]


def test_a_line_without_a_digest_or_of_another_kind_does_not_count(trace: Path, results: Path) -> None:
    cell = Square(3, str(trace))
    run([cell], Store(results), Inline())
    file = results / "Square.jsonl"
    values = json.loads(file.read_text())
    file.rename(results / "Broken.jsonl")
    assert not Store(results)._lines("Broken").records
    del values["digest"]
    file.write_text(json.dumps(values) + "\n")
    assert cell not in Store(results)


def test_every_cut_of_a_file_is_taken_up(trace: Path, results: Path) -> None:
    """A file that ends after any of its bytes."""
    cells = squares(2, trace)
    run(cells, Store(results), Inline())
    file = results / "Square.jsonl"
    whole = file.read_bytes()
    records = [Store(results).record(c) for c in cells]
    for size in sorted({*range(0, len(whole), 20), *(whole.index(b"\n") + i for i in (-1, 0, 1)), len(whole) - 1}):
        file.write_bytes(whole[:size])
        store = Store(results)
        for record in records:
            store.put(record)
        assert file.read_bytes() == whole


def test_a_damaged_line_inside_is_named(trace: Path, results: Path, caplog: pytest.LogCaptureFixture) -> None:
    cells = squares(2, trace)
    run(cells, Store(results), Inline())
    file = results / "Square.jsonl"
    file.write_text("<<<<<<< ours\n" + file.read_text())
    assert cells[0] in Store(results)
    assert "Square.jsonl, line 1 does not count" in caplog.text


def test_of_two_lines_with_one_key_the_first_counts(trace: Path, results: Path) -> None:
    cell = Square(3, str(trace))
    run([cell], Store(results), Inline())
    file = results / "Square.jsonl"
    record = Store(results).record(cell)
    other = replace(record, result={**record.result, "square": 10})
    file.write_bytes(file.read_bytes() + signed(other))
    assert len(lines(results)) == 2
    assert Store(results)[cell]["square"] == 9


def test_one_run_at_a_time_writes(trace: Path, results: Path) -> None:
    record = compute(Square(3, str(trace)))
    store = Store(results)
    with store.writing():
        with pytest.raises(StudyError, match="another run is writing"):
            run([Square(4, str(trace))], Store(results), Inline())
        store.put(record)
    assert calls(trace) == {3: 1}
    run([Square(4, str(trace))], Store(results), Inline())
    store.put(compute(Square(5, str(trace))))
    assert stored(results) == [3, 4, 5]


def test_a_link_in_the_place_of_the_lock(trace: Path, results: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    results.mkdir()
    (results / ".lock").symlink_to(precious)
    with pytest.raises(StudyError, match=r"\.lock is a link"):
        Store(results).put(compute(Square(3, str(trace))))
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("name", [".lock", "Square.jsonl", "Square.damaged"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_files_of_a_store_that_are_none(trace: Path, results: Path, name: str, make: Callable[[Path], None]) -> None:
    results.mkdir()
    if name == "Square.damaged":
        (results / "Square.jsonl").write_bytes(b"damaged\n")
    make(results / name)
    with pytest.raises(StudyError, match=re.escape(name)):
        Store(results).put(compute(Square(3, str(trace))))
    if name == "Square.damaged":
        assert (results / "Square.jsonl").read_bytes() == b"damaged\n"


def test_a_lock_that_others_wrote_to_stays_as_it_is(trace: Path, results: Path) -> None:
    results.mkdir()
    (results / ".lock").write_text("mine")
    Store(results).put(compute(Square(3, str(trace))))
    assert (results / ".lock").read_text() == "mine"


def test_a_full_disk_leaves_no_torn_line(trace: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, write = Store(results), os.write
    store.put(compute(Square(1, str(trace))))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:10]))
        with pytest.raises(StudyError, match="No space left"):
            store.put(compute(Square(2, str(trace))))
    store.put(compute(Square(3, str(trace))))
    assert stored(results) == [1, 3]


def test_progress_is_reported_while_nothing_arrives(
    pool: Executor, trace: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partialfusion_study.runner.INTERVAL", 0.01)
    reported = threading.Event()
    run(squares(1, trace, seconds=0.1), Store(results), pool, progress=lambda _, done: done == 0 and reported.set())
    assert reported.is_set()
