"""Packages that only the tests need: skipped where they are missing, demanded where CI=true."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are random; nothing is to be fetched


def demanded() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true")


def missing(package: str) -> str:
    """Why a test cannot run; nothing where it can."""
    return "" if importlib.util.find_spec(package) else f"{package} is not installed; `make test` installs it"


def need(package: str) -> None:
    """Skip the test, or fail in CI, where the package is missing."""
    if reason := missing(package):
        (pytest.fail if demanded() else pytest.skip)(reason)


def allow_torchvision() -> None:
    """The wheel of torchvision registers kernels for operators that it only defines beside a torch with CUDA."""
    for name in ("nms", "qnms"):
        if torch.version.cuda is None and not hasattr(torch.ops.torchvision, name):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
