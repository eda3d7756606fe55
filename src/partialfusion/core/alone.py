"""Public functions run one at a time, and independently of the mode that their caller is in."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

DEVICES = ("cpu", "cuda", "mps", "xpu")  # where autocast may be on
_LOCK = threading.RLock()


def alone(function: Callable[P, R]) -> Callable[P, R]:
    """Let only one thread at a time call this or another function so marked.

    They put models into evaluation mode and back, fork the state of random generators, and trace by torch.export, which
    is not safe for threads. An outer autocast or inference mode has no effect on what they compute, and the tensors of
    their results can be trained.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with _LOCK, torch.inference_mode(False), ExitStack() as modes:
            for device in DEVICES:
                if torch.is_autocast_enabled(device):
                    modes.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return call
