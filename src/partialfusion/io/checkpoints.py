"""Checkpoint files: weights from and to safetensors or torch files.

Code in a pickled file is never run.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core.modules import canonical_names, first_line, named_tensors
from ..core.text import shorten
from ..errors import CheckpointError
from ..fusing.result import Fusion
from ..surgery.resize import resized
from .factories import build
from .files import SUFFIX as SAFE
from .files import StrPath, check_target, existing, replacing, write_tensors
from .header import RECORD
from .storage import load, load_dense, narrowed, save

TORCH = (".pt", ".pth", ".bin", ".ckpt")
WRAPPERS = re.compile(r"(?:module\.|_orig_mod\.)*")  # of DataParallel and torch.compile


def load_model(spec: str, path: StrPath, *, seed: int = 0) -> nn.Module:
    """A factory's model with the weights of a file; a file that `save` wrote sets the widths too."""
    model = build(spec, seed=seed)
    if is_stored(path):
        return load(path, into=model)
    load_into(model, path)
    return model


def load_state(path: StrPath) -> dict[str, Tensor]:
    """Name → tensor on the CPU, from a .safetensors file or a torch file of tensors.

    A torch file holds a state dict, or a dict with one under "state_dict" or "model". Prefixes that
    DataParallel and torch.compile put before every name are dropped. Of a fusion, the zero blocks are filled in.
    """
    path = existing(path)
    if is_stored(path):
        return load_dense(path)
    content = read_safetensors(path) if path.suffix == SAFE else read_torch(path)
    state = _state_within(content)
    if not state:
        held = f"a {type(content).__name__}"
        if isinstance(content, Mapping):
            held += f" with {shorten([str(key) for key in content]) or 'nothing in it'}"
        raise CheckpointError(
            f"{path} is not a checkpoint: it holds {held}, not a dict of names and tensors; save model.state_dict()"
        )
    prefix = _wrapper(state)
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def load_into(model: nn.Module, path: StrPath) -> None:
    """Load a checkpoint into a model of its names and shapes; the model is as it was where that fails."""
    _check_memory(model, path)
    _fill(model, _fitted(load_state(path), model), path)


def _fill(model: nn.Module, state: Mapping[str, Tensor], path: StrPath) -> None:
    """PyTorch judges what fits, for modules may rename or complete what older versions saved."""
    own = model.state_dict()
    _check_numbers(state, own, path)
    before = {name: tensor.clone() for name, tensor in own.items() if isinstance(tensor, Tensor)}
    try:
        model.load_state_dict(state)
    except Exception as error:
        with torch.no_grad():
            for name, tensor in before.items():
                own[name].copy_(tensor)
        raise CheckpointError(_difference(state, own, path, type(model).__name__, error)) from error


def load_fused(model: nn.Module, path: StrPath) -> nn.Module:
    """A copy of a model with the widths and weights of a file, as a fusion wrote it; the model itself stays.

    Args:
        model: of the class that was fused, of any widths.
        path: what `save` wrote, or the state dict of the fused model.
    """
    if is_stored(path):
        return load(path, into=model)
    _check_memory(model, path)
    state = _fitted(load_state(path), model)
    own, name = model.state_dict(), type(model).__name__
    if state.keys() != own.keys() or any(state[n].ndim != own[n].ndim for n in own):
        raise CheckpointError(_difference(state, own, path, name))
    tensors = named_tensors(model)
    result = resized(model, {n: tuple(state.get(n, t).shape) for n, t in tensors.items()})
    with torch.no_grad():
        for n, target in named_tensors(result).items():
            if n not in state:
                target.copy_(tensors[n])
    _fill(result, state, path)
    return result


def save_state(model: nn.Module, path: StrPath, *, dtype: torch.dtype | None = None) -> None:
    """Write a model's state dict, whole or not at all, as safetensors or as a torch file by the suffix.

    Tied tensors are written under all their names, so that the file loads like any other.

    Args:
        model: any module.
        path: ends in .safetensors, or in .pt, .pth, .bin or .ckpt.
        dtype: store parameters that are wider than this in it; buffers keep their precision.
    """
    path = check_writable(path)
    state = model.state_dict()
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        raise CheckpointError(f"{path} cannot be written: {shorten(odd)} of the state dict is not a tensor")
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
    """Write a fusion: its non-zero blocks with plan and recipe as safetensors, or its state dict as a torch file."""
    path = check_writable(path)
    if path.suffix == SAFE:
        save(fusion, path, dtype=dtype)
    else:
        save_state(fusion.model, path, dtype=dtype)


def is_stored(path: StrPath) -> bool:
    """Whether `save` wrote a file."""
    return RECORD in load_metadata(path)


def load_metadata(path: StrPath) -> dict[str, str]:
    """What a safetensors file says of itself; nothing for a torch file."""
    path = existing(path)
    if path.suffix != SAFE:
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise CheckpointError(_broken(path)) from error


def check_writable(path: StrPath, *, keep: Sequence[StrPath] = ()) -> Path:
    """The path, or an error before any work is done: another kind of file, no folder, or a file to keep."""
    path = Path(path)
    if path.suffix not in (SAFE, *TORCH):
        raise CheckpointError(f"{path} cannot be written: its name must end in {SAFE} or {', '.join(TORCH)}")
    return check_target(path, keep=keep)


def _broken(path: Path) -> str:
    form = "safetensors file" if path.suffix == SAFE else "torch file of tensors"
    return f"{path} is truncated or not a {form}; save or copy it again"


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Name → tensor of a safetensors file."""
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(_broken(path)) from error


def read_torch(path: Path) -> Any:
    """What a torch file holds; the restricted unpickler refuses all but tensors and plain containers.

    PyTorch's own messages advise loading without the restriction, so none of them is passed on.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        refused = re.search(r"(?:GLOBAL|global|class|function)\s+`?([\w.]+\.[\w.]+)", str(error))
        if isinstance(error, pickle.UnpicklingError) and refused:
            raise CheckpointError(
                f"{path} holds more than tensors ({refused[1]}): loading that could run code from the file, "
                "so it is refused; save model.state_dict() alone"
            ) from error
        if "TorchScript" in str(error):
            raise CheckpointError(f"{path} is a TorchScript archive; save model.state_dict() instead") from error
        raise CheckpointError(_broken(path)) from error


def _state_within(content: Any) -> dict[str, Tensor]:
    """The state dict that an object is or holds; empty where there is none."""
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


def _check_memory(model: nn.Module, path: StrPath) -> None:
    for name, tensor in named_tensors(model).items():
        if tensor.is_meta or is_lazy(tensor):
            raise CheckpointError(
                f"{path} cannot be loaded into {type(model).__name__}: {name} has no memory yet (meta device "
                "or lazy module); build the model on the CPU with its shapes set"
            )


def _fitted(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The state under the model's names: a wrapper's prefix put back, tied tensors under all their names."""
    names = list(model.state_dict())
    prefix = _wrapper(names)
    state = {f"{prefix}{n}": tensor for n, tensor in state.items()}
    first = canonical_names(model)
    stored = {first[n]: tensor for n, tensor in state.items() if n in first}
    tied = {n: stored[first[n]] for n in names if n not in state and first.get(n) in stored}
    return {**state, **tied}


def _check_numbers(state: Mapping[str, Tensor], own: Mapping[str, Any], path: StrPath) -> None:
    """Precision may differ; integers, quantised and complex numbers are no stand-in for real ones."""
    for name, tensor in state.items():
        mine = own.get(name)
        if not isinstance(mine, Tensor):
            continue
        kinds = [(t.is_floating_point(), t.is_complex(), t.is_quantized) for t in (tensor, mine)]
        if kinds[0] != kinds[1]:
            raise CheckpointError(
                f"{path} is of another model: {name} {_shape(tensor)} is {tensor.dtype} in the file and "
                f"{mine.dtype} in the model; load the checkpoint of the original floating-point model"
            )


def _difference(
    state: Mapping[str, Tensor],
    own: Mapping[str, Any],
    path: StrPath,
    model: str,
    error: Exception | None = None,
) -> str:
    """One line on how a state dict differs from a model's."""
    missing = [f"{n} {_shape(t)}" for n, t in own.items() if n not in state]
    extra = [f"{n} {_shape(t)}" for n, t in state.items() if n not in own]
    other = [
        f"{n} {_shape(t)} in the file and {_shape(own[n])} in the model"
        for n, t in state.items()
        if n in own and _shape(t) != _shape(own[n])
    ]
    told = [
        f"{what}: {shorten(found)}"
        for what, found in (("it lacks", missing), ("it has more", extra), ("shapes differ", other))
        if found
    ]
    if not told and error is not None:
        told = [first_line(error)]
    remedy = "build the model that the file was saved from"
    if other and not missing and not extra:
        remedy = (
            "name a factory that builds these widths (on the command line --factory for each model after the first), "
            "or load it with pf.load where a fusion wrote it"
        )
    return f"{path} is of another model than {model}: {'; '.join(told)}. {remedy[0].upper()}{remedy[1:]}"


def _shape(tensor: object) -> str:
    return str(tuple(tensor.shape)) if isinstance(tensor, Tensor) else type(tensor).__name__
