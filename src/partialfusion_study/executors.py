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

import partialfusion as pf
from partialfusion.core.machine import available_cores as cores
from partialfusion.errors import OptionError

from .errors import StudyError

log = logging.getLogger(__name__)

LIVES = 3  # worker processes that a call may cost
GRACE = 5.0  # seconds between the last word of a process and its end, beyond which it is killed
TIMEOUT = 10  # seconds to wait for a scheduler

GUARD = "see their messages, and start studies of a script of yours below `if __name__ == '__main__':`"

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def executor(workers: int | None = None, cluster: str | None = None) -> Iterator[Executor]:
    """What cells are submitted to; nothing of it is left when the context ends.

    Args:
        workers: processes on this machine, at most as many as there are cells; None takes one per core, 0 runs the
            cells in this process, one after the other, which suits a debugger.
        cluster: address of a dask scheduler, such as "tcp://host:8786", whose workers take the place of processes
            here. They need the same version of this library and a module path on which the cells can be imported, and
            are best started with `--nthreads 1`. Their environment is their own business: PARTIALFUSION_DATA
            and PARTIALFUSION_CACHE are read where a cell runs.
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
        pool = Pool(workers or cores())
        try:
            yield pool
        finally:
            pool.kill()


class Inline(Executor):
    """Calls at once, in this process."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call, and return a future that has ended."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Pool(ThreadPoolExecutor):
    """Threads, each with a worker process that makes its calls.

    When a process dies, killed or out of memory, its thread starts another and makes the call again; the
    other calls are not concerned. So it is known which call costs its process the life: the third time is an error.
    A process that ends before it is ready is not to be blamed on a call: the next would end so too, and all calls fail.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._threads_each = max(1, cores() // workers)
        self._lock = threading.Lock()
        self._own = threading.local()  # the worker of each thread
        self._all: list[_Worker] = []
        self._closed: str | None = None  # why no process is started any more

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in the next free process; function, arguments and result are pickled."""
        return super().submit(self._call, fn, args, kwargs)

    def kill(self) -> None:
        """End all processes, whatever they are doing, and the threads."""
        self.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = "the pool is closed"
        for worker in self._all:
            worker.kill()
        self.shutdown(wait=True)

    def _call(self, *call: Any) -> Any:
        message = pickle.dumps(call)
        for _ in range(LIVES):
            worker = self._worker()
            try:
                result, error = pickle.loads(worker.call(message))
            except (EOFError, OSError):
                code = worker.kill(grace=GRACE)
                if not worker.ready and code != -signal.SIGKILL:
                    self._closed = f"worker processes end as they start (exit code {code}): {GUARD}"
                elif not self._closed:
                    log.warning("a worker process died (exit code %s), its work begins again", code)
            else:
                if error is not None:
                    raise error
                return result
        raise BrokenExecutor(
            f"its worker process died {LIVES} times, at last with exit code {code}"
            + (": killed, as happens when memory runs out" if code == -signal.SIGKILL else "")
        )

    def _worker(self) -> _Worker:
        """The process of this thread, started anew where there is none alive."""
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None or not worker.alive:
            with self._lock:  # the environment is common to all threads
                if self._closed:
                    raise BrokenExecutor(self._closed)
                worker = self._own.worker = _Worker(self._threads_each)
                self._all.append(worker)
        return worker


class _Worker:
    """A process that makes one call after the other."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # threads of torch and numba do not survive a fork
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        with _threads(threads):
            self._process.start()
        theirs.close()
        self.alive, self.ready = True, False

    def call(self, message: bytes) -> bytes:
        """Send a pickled call, wait for the pickled reply; EOFError or OSError where the process died."""
        if not self.ready:
            self._pipe.recv_bytes()
            self.ready = True
        self._pipe.send_bytes(message)
        return self._pipe.recv_bytes()

    def kill(self, grace: float = 0.0) -> int | None:
        """End the process if it has not ended by itself after `grace` seconds; its exit code."""
        self._process.join(grace)
        self._process.kill()
        self._process.join()
        self.alive = False
        return self._process.exitcode


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """A process that starts inside takes so many threads, where the user has not said otherwise.

    It has to be in the environment: the libraries read it when they are loaded, which is before our code runs.
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
    """The life of a worker process: until its parent closes the pipe, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe.send_bytes(b"ready")
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            return
        pipe.send_bytes(_reply(message))


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, which may have hours of work before them."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _reply(message: bytes) -> bytes:
    """Make a pickled call; the pickled (result, None) or (None, error)."""
    try:
        function, args, kwargs = pickle.loads(message)
        return pickle.dumps((function(*args, **kwargs), None))
    except StudyError as error:
        return pickle.dumps((None, error))
    except Exception as error:  # not every exception can be pickled
        return pickle.dumps((None, StudyError(f"{type(error).__name__}: {error}")))


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    """The workers of a dask scheduler; it makes the calls of a worker that died again, elsewhere."""
    try:
        from distributed import Client
    except ImportError:
        raise StudyError("a cluster needs dask: pip install 'partialfusion[cluster]'") from None
    try:
        client = Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise StudyError(f"no scheduler at {address} ({error}): is it running, is the address right?") from None
    with client:
        _greet(client, address)
        found = client.get_executor(pure=False)
        try:
            yield found
        finally:
            found.shutdown(wait=False)


def _greet(client: Any, address: str) -> None:
    """Make sure that the workers have this library, in this version."""
    replies = client.run(_version, on_error="return")
    if not replies:
        log.warning("the scheduler at %s has no workers yet: cells wait until there are some", address)
    for worker, reply in replies.items():
        if reply != _version():
            raise StudyError(f"worker {worker} answers {reply!r}, not {_version()!r}: install the same version there")


def _version() -> str:
    return f"partialfusion {pf.__version__}"
