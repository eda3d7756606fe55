"""The same runner over a dask scheduler and its workers, all processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from partialfusion.core.cluster import check_workers
from partialfusion.errors import ClusterError
from partialfusion_study.errors import StudyError
from partialfusion_study.runner import executor, run
from partialfusion_study.store import Store
from study.sample_cells import Broken, alive, calls, processes, squares, stored, wait_for

pytest.importorskip("distributed")

OPTIONS = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]


class Cluster:
    """A scheduler and two workers on this machine."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.stack = stack
        file = folder / "scheduler.json"
        self.scheduler = self.start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file)
        self.workers = [self.start("dask_worker", "--scheduler-file", file, *OPTIONS) for _ in range(2)]
        wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        self.address: str = json.loads(file.read_text())["address"]

    def start(self, module: str, *options: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *map(str, options)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.DEVNULL,
        )
        self.stack.enter_context(process)
        self.stack.callback(process.kill)
        return process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("cluster"), stack)


def test_a_failure_arrives_from_a_worker(cluster: Cluster, trace: Path, results: Path) -> None:
    with executor(cluster=cluster.address) as found, pytest.raises(StudyError) as error:
        run([Broken("raises"), *squares(4, trace), Broken("nan")], Store(results), found)
    assert str(error.value).startswith("4 computed, 0 reused, 2 failed")
    assert 'Broken {"how": "raises"}: LocalError: out of luck' in str(error.value)
    assert "result.loss[1] is nan" in str(error.value)
    assert stored(results) == [0, 1, 2, 3]


def test_a_worker_that_is_killed_costs_nothing(cluster: Cluster, trace: Path, results: Path) -> None:
    wait_until_both_work(cluster)
    killed: list[int] = []

    def kill(label: str, done: float) -> None:
        if not killed and done >= 0.25 and len(processes(trace)) == 2:
            killed.append(cluster.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    with executor(cluster=cluster.address) as found:
        summary = run(squares(40, trace, seconds=0.1), Store(results), found, progress=kill)
    assert killed
    assert killed[0] in processes(trace)
    assert (summary.computed, summary.failed) == (40, 0)
    assert stored(results) == list(range(40))
    assert set(calls(trace)) == set(range(40))
    assert alive(cluster.workers[1].pid)


def test_a_scheduler_that_is_killed_ends_the_run_and_keeps_what_arrived(
    cluster: Cluster, trace: Path, results: Path
) -> None:
    def kill(label: str, done: float) -> None:
        if done >= 0.25:
            cluster.scheduler.kill()

    with executor(cluster=cluster.address) as found, pytest.raises(StudyError, match="connection to the workers"):
        run(squares(40, trace, seconds=0.1), Store(results), found, progress=kill)
    assert 10 <= len(stored(results)) < 40


def wait_until_both_work(cluster: Cluster) -> None:
    from distributed import Client

    with Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)


def test_without_a_scheduler_or_dask_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partialfusion.core.cluster.TIMEOUT", 0.5)
    with pytest.raises(StudyError, match=r"no scheduler at tcp://127.0.0.1:1 "), executor(cluster="tcp://127.0.0.1:1"):
        pass
    with pytest.raises(StudyError, match="no scheduler at nonsense://x"), executor(cluster="nonsense://x"):
        pass
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(StudyError, match=r"pip install 'partialfusion\[cluster\]'"), executor(cluster="tcp://a:1"):
        pass


@pytest.mark.parametrize("reply", ["partialfusion 0.0.1", ModuleNotFoundError("No module named 'partialfusion'")])
def test_a_worker_without_this_version_is_named(reply: object) -> None:
    class Client:
        def run(self, *_: object, **__: object) -> dict[str, object]:
            return {"tcp://b:2": reply}

    with pytest.raises(ClusterError, match=r"worker tcp://b:2 .*(0\.0\.1|No module).* install the same version"):
        check_workers(Client(), "tcp://a:1")
