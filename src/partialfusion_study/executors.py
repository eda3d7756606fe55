"""Where cells run: in processes of this machine, in this process, or on a cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from partialfusion.core.cluster import connected
from partialfusion.core.machine import available_cores
from partialfusion.errors import ClusterError, OptionError

from .errors import StudyError

log = logging.getLogger(__name__)

ATTEMPTS = 3  # worker processes that may die of one call
GRACE = 5.0  # seconds after which a process that closed its pipe is killed

GUARD = "see their messages; in a script, start studies below `if __name__ == '__main__':`"

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def executor(workers: int | None = None, cluster: str | None = None) -> Iterator[Executor]:
    """The executor of the cells; its processes end with the context.

    Args:
        workers: the number of processes on this machine. None means one per core; 0 runs the cells in this process,
            one after the other, which is convenient in a debugger.
        cluster: the address of a dask scheduler, such as "tcp://host:8786", whose workers run the cells instead. They
            need the same version of this library, must be able to import the cells, and are best started with
            `--nthreads 1`. PARTIALFUSION_DATA and PARTIALFUSION_CACHE are read from their environment.
    """
    if cluster is not None and workers is not None:
        raise OptionError(
            f"workers={workers} and cluster={cluster!r} exclude each other: a cluster has its own workers"
        )
    if workers is not None and workers < 0:
        raise OptionError(f"workers must be 0 or more, found {workers}")
    if cluster is not None:
        with _dask(cluster) as found:
            yield found
    elif workers == 0:
        yield Inline()
    else:
        pool = Pool(workers or available_cores())
        try:
            yield pool
        finally:
            pool.kill()


class Inline(Executor):
    """Runs calls immediately, in this process."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function and return a finished future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Pool(ThreadPoolExecutor):
    """Threads, each with a worker process that runs its calls.

    When a process dies, killed or out of memory, its thread starts another one and repeats the call; other calls are
    not affected. Because it is known which call killed its process, a call fails when this happens the third time.
    When a process ends before it is ready, no call is to blame and the next process would end as well: all calls fail.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._threads_each = max(1, available_cores() // workers)
        self._lock = threading.Lock()
        self._local = threading.local()  # the worker of each thread
        self._all: list[_Worker] = []
        self._closed: str | None = None  # the reason why no more processes are started

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in the next free process; function, arguments and result are pickled."""
        return super().submit(self._call, fn, args, kwargs)

    def kill(self) -> None:
        """Kill all processes and end the threads."""
        self.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = "the pool is closed"
        for worker in self._all:
            worker.kill()
        self.shutdown(wait=True)

    def _call(self, *call: Any) -> Any:
        message = pickle.dumps(call)
        for _ in range(ATTEMPTS):
            worker = self._worker()
            try:
                result, error = pickle.loads(worker.call(message))
            except (EOFError, OSError):
                code = worker.kill(grace=GRACE)
                if not worker.ready and code != -signal.SIGKILL:
                    self._closed = f"worker processes end on startup (exit code {code}): {GUARD}"
                elif not self._closed:
                    log.warning("a worker process died (exit code %s); repeating its work", code)
            else:
                if error is not None:
                    raise error
                return result
        raise BrokenExecutor(
            f"its worker process died {ATTEMPTS} times, the last time with exit code {code}"
            + (": it was killed, possibly because memory ran out" if code == -signal.SIGKILL else "")
        )

    def _worker(self) -> _Worker:
        """The process of this thread; a new one where none is alive."""
        worker: _Worker | None = getattr(self._local, "worker", None)
        if worker is None or not worker.alive:
            with self._lock:  # all threads have the same environment
                if self._closed:
                    raise BrokenExecutor(self._closed)
                worker = self._local.worker = _Worker(self._threads_each)
                self._all.append(worker)
        return worker


class _Worker:
    """A process that runs one call after the other."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # threads of torch and numba do not survive a fork
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        with _threads(threads):
            self._process.start()
        theirs.close()
        self.alive, self.ready = True, False

    def call(self, message: bytes) -> bytes:
        """Send a pickled call and wait for the pickled reply; raises EOFError or OSError where the process died."""
        if not self.ready:
            self._pipe.recv_bytes()
            self.ready = True
        self._pipe.send_bytes(message)
        return self._pipe.recv_bytes()

    def kill(self, grace: float = 0.0) -> int | None:
        """Kill the process if it has not ended after `grace` seconds; returns its exit code."""
        self._process.join(grace)
        self._process.kill()
        self._process.join()
        self.alive = False
        return self._process.exitcode


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Processes started inside use so many threads, unless the user has set OMP_NUM_THREADS.

    It has to be set in the environment, because libraries read it when they are loaded, before our code runs.
    """
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]


def _serve(pipe: Connection[Any, Any]) -> None:
    """The main loop of a worker process, until its parent closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group: the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe.send_bytes(b"ready")
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            return
        pipe.send_bytes(_reply(message))


def _end_with_parent() -> None:
    """End this process when its parent has been killed; otherwise it might work on for hours."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _reply(message: bytes) -> bytes:
    """Run a pickled call; returns the pickled (result, None) or (None, error)."""
    try:
        function, args, kwargs = pickle.loads(message)
        return pickle.dumps((function(*args, **kwargs), None))
    except StudyError as error:
        return pickle.dumps((None, error))
    except Exception as error:  # not every exception can be pickled
        return pickle.dumps((None, StudyError(f"{type(error).__name__}: {error}")))


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    """The workers of a dask scheduler, which repeats the calls of a worker that died on another one."""
    try:
        with connected(address) as client:
            found = client.get_executor(pure=False)
            try:
                yield found
            finally:
                found.shutdown(wait=False)
    except ClusterError as error:
        raise StudyError(str(error)) from None
