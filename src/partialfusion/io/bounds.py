"""How much a file may become in memory: what it declares is compared with its own size before it is unpacked."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MARGIN = 64 << 20  # bytes that any file may become
RATIO = 32  # and so many times its own size; images as float32 reach 15, hardly anything but constants more
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy and PyTorch write; others may need gigabytes to unpack


class OversizeError(ValueError):
    """A file that declares more than it can hold; the message says what, and begins after the name of the file."""


def check_archive(path: Path) -> None:
    """Refuse a zip archive whose members would become far larger than the file; any other file is none of our business.

    Raises:
        OversizeError: they would, or they are compressed in a way that neither NumPy nor PyTorch writes.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(member.compress_type not in PACKED for member in members):
        raise OversizeError("is compressed in a way that is not read; save it without compression")
    _check(sum(member.file_size for member in members), path)


def check_tensors(found: Mapping[Any, Any], path: Path) -> None:
    """Refuse tensors without memory of their own, and those that are views of far fewer numbers than they show.

    Raises:
        OversizeError: there are such tensors.
    """
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_nested:
            raise OversizeError(f"holds {name}, which is no dense tensor with memory; save dense tensors")
    _check(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()), path)


def _check(size: int, path: Path) -> None:
    own = os.path.getsize(path)
    if size > MARGIN + RATIO * own:
        raise OversizeError(
            f"has {own} bytes and would become {size} in memory, which no honest file does unless it is full of "
            "constants; save it without compression"
        )
