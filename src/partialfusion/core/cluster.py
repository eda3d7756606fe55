"""Tasks that do not depend on each other: run here, one by one or in threads, or by the workers of a Dask scheduler."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Protocol, TypeVar

import torch

from ..errors import ClusterError, FusionError
from .compute import Device, computing_on
from .progress import hearing
from .version import __version__

log = logging.getLogger(__name__)

TIMEOUT = 10  # seconds to wait for a scheduler
MOST_THREADS = 8

T = TypeVar("T")


class Tasks(Protocol):
    """Where tasks run."""

    def share(self, value: Any) -> Any:
        """What to pass to tasks in the place of a value that many of them need; it should be asked for once."""

    def run(self, function: Callable[..., T], calls: Sequence[tuple[Any, ...]], *, short: bool = False) -> Iterator[T]:
        """The results of a function for the arguments of each call, in their order, each as soon as it is known.

        Args:
            function: the function.
            calls: its arguments.
            short: the calls take too little time for threads of this process to pay.
        """


class Here:
    """Runs tasks in this process, one after the other: memory is needed for one of them only."""

    def share(self, value: Any) -> Any:
        return value

    def run(self, function: Callable[..., T], calls: Sequence[tuple[Any, ...]], *, short: bool = False) -> Iterator[T]:
        for call in calls:
            yield function(*call)


class Threads:
    """Runs tasks in threads of this process, as many as PyTorch computes with: memory is needed for each of them.

    Tasks spend most of their time in compiled code, which lets other threads run.

    Args:
        most: run no more at a time.
    """

    def __init__(self, most: int = MOST_THREADS) -> None:
        self.most = most

    def __reduce__(self) -> tuple[type[Here], tuple[()]]:
        """Another process runs its tasks one after the other."""
        return Here, ()

    def share(self, value: Any) -> Any:
        return value

    def run(self, function: Callable[..., T], calls: Sequence[tuple[Any, ...]], *, short: bool = False) -> Iterator[T]:
        count = min(torch.get_num_threads(), len(calls), self.most)
        if short or count < 2:
            yield from Here().run(function, calls)
            return
        pool = ThreadPoolExecutor(count, thread_name_prefix="partialfusion")
        try:
            futures = [pool.submit(copy_context().run, _without_gradients, function, *call) for call in calls]
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _without_gradients(function: Callable[..., T], *call: Any) -> T:
    """A new thread does not know that gradients are off, nor how many threads PyTorch computes with, before it asks;
    its first product would be summed in another order. It reports nothing before it ends."""
    torch.get_num_threads()
    with torch.no_grad(), hearing(None):
        return function(*call)


class OnDask:
    """Runs tasks on the workers of a Dask scheduler, which repeats those of a worker that died on another one.

    Args:
        client: a client of the scheduler.
        device: where the workers compute the heavy parts; this process need not have it.
    """

    def __init__(self, client: Any, device: Device | None = None) -> None:
        self.client, self.device = client, device

    def __reduce__(self) -> tuple[type[Here], tuple[()]]:
        """A worker runs the tasks of a task by itself."""
        return Here, ()

    def share(self, value: Any) -> Any:
        # The scheduler keeps the bytes: a worker that dies takes no copy with it that cannot be made again.
        return self.client.submit(pickle.loads, pickle.dumps(value), pure=False)

    def run(self, function: Callable[..., T], calls: Sequence[tuple[Any, ...]], *, short: bool = False) -> Iterator[T]:
        futures = [self.client.submit(_on, self.device, function, *call, pure=False) for call in calls]
        try:
            for future in futures:
                yield self._result(future)
        finally:
            self.client.cancel([f for f in futures if not f.done()])

    @staticmethod
    def _result(future: Any) -> Any:
        try:
            return future.result()
        except FusionError:
            raise
        except Exception as error:
            lost = type(error).__name__ in ("KilledWorker", "CancelledError", "CommClosedError", "FutureCancelledError")
            if not lost:
                raise
            raise ClusterError(
                f"the workers were lost ({type(error).__name__}): see their messages, give them more memory or start "
                "others, and run again; what is finished stays"
            ) from error


def _on(device: Device | None, function: Callable[..., T], *call: Any) -> T:
    """A task on a worker, which does not know what was chosen in the process that sent it."""
    with computing_on(device):
        return function(*call)


@contextmanager
def tasks(cluster: str | None, device: Device | None = None) -> Iterator[Tasks]:
    """Where the tasks of a call run: in this process, or on the workers of a scheduler with this address.

    Args:
        cluster: the address.
        device: where the heavy parts are computed, of that process or of the workers.
    """
    if cluster is None:
        with computing_on(device):
            yield Here()
    else:
        with connected(cluster) as client:
            yield OnDask(client, device)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of a Dask scheduler whose workers have the same version of this library."""
    try:
        from distributed import Client
    except ImportError:
        raise ClusterError("running on a cluster needs dask: pip install 'partialfusion[cluster]'") from None
    try:
        client = Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no scheduler at {address} ({error}); check that it is running and that the address is right"
        ) from None
    with client:
        check_workers(client, address)
        yield client


def check_workers(client: Any, address: str) -> None:
    """Make sure that the workers have the same version of this library."""
    replies = client.run(_version, on_error="return")
    if not replies:
        log.warning("the scheduler at %s has no workers yet; the work waits for them", address)
    for worker, reply in replies.items():
        if reply != _version():
            raise ClusterError(f"worker {worker} has {reply!r}, not {_version()!r}: install the same version there")


def _version() -> str:
    return f"partialfusion {__version__}"
