"""Checkpoints: weights read from and written to safetensors or torch files.

Code in a pickled file is never run.
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.modules import canonical_names, first_line, named_tensors
from ..core.text import shorten
from ..errors import CheckpointError
from ..fusing.result import Fusion
from ..surgery.resize import resized
from .bounds import OversizeError, check_archive, check_tensors
from .factories import build
from .files import SUFFIX as SAFE
from .files import StrPath, check_target, existing, reading, replacing, write_tensors
from .fit import check_kind, check_memory, differences
from .header import RECORD
from .pretrained import load_directory
from .storage import load, load_dense, narrowed, save

TORCH = (".pt", ".pth", ".bin", ".ckpt")
WRAPPERS = re.compile(r"(?:module\.|_orig_mod\.)*")  # prefixes that DataParallel and torch.compile put before names


def load_model(spec: str, path: StrPath, *, seed: int = 0) -> nn.Module:
    """The model that a factory builds, with the weights of a file; a file that `save` wrote also sets the widths.

    For a model of transformers, the weights may be in a directory, as safetensors in one file or several.
    """
    model = build(spec, seed=seed)
    if os.path.isdir(path) and hasattr(model, "from_pretrained"):
        return load_directory(model, path)
    if is_stored(path):
        return load(path, into=model)
    load_into(model, path)
    return model


def load_state(path: StrPath) -> dict[str, Tensor]:
    """Name → tensor on the CPU, from a .safetensors file or a torch file of tensors.

    A torch file holds a state dict, or a dict with one under "state_dict" or "model". Prefixes that
    DataParallel and torch.compile put before every name are dropped. The tensors of a stored fusion are returned dense.
    """
    path = existing(path)
    if is_stored(path):
        return load_dense(path)
    content = read_safetensors(path) if path.suffix == SAFE else read_torch(path)
    state = _state_within(content)
    if not state:
        kind = f"a {type(content).__name__}"
        if isinstance(content, Mapping):
            kind += f" with {shorten([str(key) for key in content]) or 'nothing in it'}"
        raise CheckpointError(
            f"{path} is not a checkpoint: it holds {kind}, not a dict of names and tensors; save model.state_dict()"
        )
    try:
        check_tensors(state, path)
    except OversizeError as error:
        raise CheckpointError(f"{path} {error}") from error
    prefix = _wrapper(state)
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def load_into(model: nn.Module, path: StrPath) -> None:
    """Load a checkpoint into a model with the same names and shapes; if that fails, the model is left unchanged."""
    check_memory(model, path)
    _fill(model, _fitted(load_state(path), model), path)


def _fill(model: nn.Module, state: Mapping[str, Tensor], path: StrPath) -> None:
    """PyTorch decides what fits, because modules may rename or complete what older versions saved."""
    target = model.state_dict()
    for name, tensor in state.items():
        if isinstance(target.get(name), Tensor):
            remedy = "load the checkpoint of the original floating-point model"
            check_kind(path, name, tensor, target[name], remedy=remedy)
    before = {name: tensor.clone() for name, tensor in target.items() if isinstance(tensor, Tensor)}
    try:
        model.load_state_dict(state)
    except Exception as error:
        with torch.no_grad():
            for name, tensor in before.items():
                target[name].copy_(tensor)
        raise CheckpointError(_mismatch(state, target, path, type(model).__name__, error)) from error


def load_fused(model: nn.Module, path: StrPath) -> nn.Module:
    """A copy of a model with the widths and weights of a fused model in a file.

    Args:
        model: an instance of the class that was fused, with any widths; it is not changed.
        path: a file that `save` wrote, or one with the state dict of the fused model.
    """
    if is_stored(path):
        return load(path, into=model)
    check_memory(model, path)
    state, target = _fitted(load_state(path), model), model.state_dict()
    if state.keys() != target.keys() or any(state[n].ndim != target[n].ndim for n in target):
        raise CheckpointError(_mismatch(state, target, path, type(model).__name__))
    tensors = named_tensors(model)
    result = resized(model, {n: tuple(state.get(n, t).shape) for n, t in tensors.items()})
    with torch.no_grad():
        for n, tensor in named_tensors(result).items():
            if n not in state:
                tensor.copy_(tensors[n])
    _fill(result, state, path)
    return result


def save_state(model: nn.Module, path: StrPath, *, dtype: torch.dtype | None = None) -> None:
    """Write a model's state dict, completely or not at all; the suffix decides between safetensors and a torch file.

    Tied tensors are written under all their names, so that the file loads like any other.

    Args:
        model: any module.
        path: the file to write; its name ends in .safetensors, or in .pt, .pth, .bin or .ckpt.
        dtype: the precision for parameters that are wider; buffers keep theirs.
    """
    path = check_writable(path)
    state = model.state_dict()
    others = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if others:
        raise CheckpointError(
            f"{path} cannot be written: the state dict holds values that are not tensors ({shorten(others)}); write "
            "it with torch.save"
        )
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = {
        name: narrowed(name, tensor.detach(), dtype if name in parameters else None).cpu()
        for name, tensor in state.items()
    }
    with replacing(path) as file:
        if path.suffix == SAFE:
            write_tensors(file, {name: t.contiguous() for name, t in state.items()}, {"format": "pt"})
        else:
            torch.save(state, file)


def save_fusion(fusion: Fusion, path: StrPath, *, dtype: torch.dtype | None = None) -> None:
    """Write a fusion: its non-zero blocks with plan and recipe as safetensors, or its state dict as a torch file.

    Args:
        fusion: what `fuse` or `prune` returned.
        path: the file to write; the suffix decides.
        dtype: the precision for parameters that are wider; buffers keep theirs.
    """
    path = check_writable(path)
    if path.suffix == SAFE:
        save(fusion, path, dtype=dtype)
    else:
        save_state(fusion.model, path, dtype=dtype)


def is_stored(path: StrPath) -> bool:
    """Whether a file was written by `save`."""
    return RECORD in load_metadata(path)


def load_metadata(path: StrPath) -> dict[str, str]:
    """The metadata of a safetensors file; empty for a torch file."""
    path = existing(path)
    if path.suffix != SAFE:
        return {}
    with reading(path) as file:
        return dict(file.metadata() or {})


def check_writable(path: StrPath, *, keep: Sequence[StrPath] = ()) -> Path:
    """The path of a checkpoint to write, or an error before any work is done; see `check_target`."""
    return check_target(path, suffixes=(SAFE, *TORCH), keep=keep)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Name → tensor of a safetensors file."""
    with reading(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)


def read_torch(path: Path) -> Any:
    """The content of a torch file; the restricted unpickler refuses all but tensors and plain containers.

    PyTorch's own messages advise loading without the restriction, so none of them is passed on.
    """
    try:
        check_archive(path)
        with warnings.catch_warnings(), open(path, "rb") as file:
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except OversizeError as error:
        raise CheckpointError(f"{path} {error}") from error
    except Exception as error:
        refused = re.search(r"(?:GLOBAL|global|class|function)\s+`?([\w.]+\.[\w.]+)", str(error))
        if isinstance(error, pickle.UnpicklingError) and refused:
            raise CheckpointError(
                f"{path} holds more than tensors ({refused[1]}): loading that could run code from the file, "
                "so it is refused; save model.state_dict() alone"
            ) from error
        if "TorchScript" in str(error):
            raise CheckpointError(f"{path} is a TorchScript archive; save model.state_dict() instead") from error
        raise CheckpointError(f"{path} is truncated or not a torch file of tensors; save or copy it again") from error


def _state_within(content: Any) -> dict[str, Tensor]:
    """The state dict that an object is or holds; empty if there is none."""
    inner = [content.get(key) for key in ("state_dict", "model")] if isinstance(content, Mapping) else []
    for state in (content, *inner):
        if isinstance(state, Mapping) and state:
            named = {k: v for k, v in state.items() if isinstance(k, str) and isinstance(v, Tensor)}
            if len(named) == len(state):
                return named
    return {}


def _wrapper(names: Iterable[str]) -> str:
    """The prefix of wrappers that all names have in common."""
    prefixes = {found[0] for name in names if (found := WRAPPERS.match(name))}
    shortest = min(prefixes, key=len, default="")
    return shortest if all(prefix.startswith(shortest) for prefix in prefixes) else ""


def _fitted(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The state under the model's names: a wrapper's prefix is put back, tied tensors get all their names."""
    names = list(model.state_dict())
    prefix = _wrapper(names)
    state = {f"{prefix}{n}": tensor for n, tensor in state.items()}
    first = canonical_names(model)
    stored = {first[n]: tensor for n, tensor in state.items() if n in first}
    tied = {n: stored[first[n]] for n in names if n not in state and first.get(n) in stored}
    return {**state, **tied}


def _mismatch(
    state: Mapping[str, Tensor],
    target: Mapping[str, Any],
    path: StrPath,
    model: str,
    error: Exception | None = None,
) -> str:
    """One line on how a state dict differs from a model's; where no difference shows, what PyTorch says."""
    found = differences(state, target)
    reason = first_line(error) if error is not None and not found else str(found)
    remedy = "Build the model that the file was saved from"
    if found.only_shapes:
        remedy = (
            "Name a factory that builds these widths (on the command line --factory for each model after the first), "
            "or load the file with pf.load if it is a saved fusion"
        )
    return f"{path} does not fit {model}: {reason}. {remedy}"
