"""What the adapters share: code from a clone, on a CPU, and batch norms measured on the images."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn


@contextmanager
def clone(folder: Path, *, unused: Sequence[str] = ()) -> Iterator[None]:
    """Import from a clone inside; afterwards its modules are forgotten, since two clones may use the same names.

    Args:
        folder: the clone.
        unused: packages that it imports but that are not needed here; where one is missing, a module takes its place
            whose names can be imported but not called.
    """
    if not folder.is_dir():
        raise SystemExit(f"{folder} is not a folder: name a clone of the repository")
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        for name in unused:
            _import_or_stand_in(name)
        with redirect_stdout(StringIO()), _on_cpu():
            yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            if isinstance(sys.modules[name], _Missing) or _is_from(sys.modules[name], folder):
                del sys.modules[name]


def recalibrated(model: nn.Module, data: Iterable[Tensor]) -> nn.Module:
    """The model in evaluation mode, its batch norms with the statistics of the images."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    if norms:
        model.train()
        with torch.no_grad():
            for batch in data:
                model(batch)
    return model.eval()


@contextmanager
def _on_cpu() -> Iterator[None]:
    """Without a GPU, `.cuda()` leaves tensors and modules where they are."""

    def stay(self: Any, *_: Any, **__: Any) -> Any:
        return self

    with ExitStack() as stack:
        for owner in () if torch.cuda.is_available() else (Tensor, nn.Module):
            stack.enter_context(patch.object(owner, "cuda", stay))
        yield


def _import_or_stand_in(name: str) -> None:
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError):  # a build of torchvision for another torch raises the latter
        sys.modules[name] = _Missing(name)


class _Missing(ModuleType):
    """Stands for a package that is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: Any, **__: Any) -> Any:
            raise ImportError(f"{self.__name__} is not installed, but {name} is needed")

        return refuse


def _is_from(module: ModuleType, folder: Path) -> bool:
    origin = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return origin is not None and Path(origin).is_relative_to(folder)
