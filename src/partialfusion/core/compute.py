"""Where the heavy parts are computed: on the device that was chosen, or wherever their tensors are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from ..errors import OptionError

Device = str | torch.device

_chosen: ContextVar[torch.device | None] = ContextVar("device", default=None)


@contextmanager
def computing_on(device: Device | None) -> Iterator[None]:
    """Compute the heavy parts (products of features, moments of activations, the equations of refitting) on a device.

    Models, their activations and results stay where they are; what is large is moved a piece at a time.

    Args:
        device: such as "cuda" or "cuda:1"; None leaves the choice as it is.
    """
    token = _chosen.set(_chosen.get() if device is None else _usable(device))
    try:
        yield
    finally:
        _chosen.reset(token)


def moved(tensor: Tensor) -> Tensor:
    """A tensor on the device that was chosen; itself where none was, or where it is there already."""
    device = _chosen.get()
    return tensor if device is None else tensor.to(device)


def _usable(device: Device) -> torch.device:
    """The device, if it can compute in double precision here."""
    try:
        found = torch.device(device)
        torch.zeros(1, dtype=torch.float64, device=found).add_(1).cpu()
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        line = str(error).partition("\n")[0]
        raise OptionError(f"device={device!r} cannot be used here: {line}") from error
    return found
