"""Checkpoint files: models from factories, weights from and to safetensors or torch files.

Code in a pickled file is never run.
"""

from __future__ import annotations

import importlib
import math
import os
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .blueprint import canonical_names, first_line, named_tensors
from .errors import CheckpointError, DataError, OptionError
from .fusion import Fusion
from .runtime.files import SUFFIX as SAFE
from .runtime.files import StrPath, existing, replacing, write_tensors
from .runtime.header import RECORD
from .runtime.storage import load, load_dense, save
from .surgery.resize import resized
from .text import shorten

TORCH = (".pt", ".pth", ".bin", ".ckpt")
WRAPPERS = re.compile(r"(?:module\.|_orig_mod\.)*")  # of DataParallel and torch.compile


def load_factory(spec: str) -> Callable[[], object]:
    """The callable that `package.module:factory` names; modules in the current folder are found too."""
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise OptionError(f"factory {spec!r}: name it as package.module:factory, such as torchvision.models:resnet18")
    with _current_folder_on_path():
        found: Any = _import(module_name, spec)
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, list(getattr(found, "__dict__", {})))
            has = f"; did you mean {' or '.join(near)}?" if near else ""
            raise OptionError(f"factory {spec!r}: {module_name} has no {attribute!r}{has}")
        found = getattr(found, part)
    if not callable(found):
        raise OptionError(
            f"factory {spec!r} is a {type(found).__name__}: name a function or class that returns the model "
            "when called without arguments"
        )
    return found


def build(spec: str, *, seed: int = 0) -> nn.Module:
    """The model that a factory returns; what it draws follows the seed, not the global random state."""
    factory = load_factory(spec)
    with _current_folder_on_path(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            model = factory()
        except (Exception, SystemExit) as error:
            raise OptionError(
                f"factory {spec!r} failed: {first_line(error)}. It is called without arguments; wrap a model that "
                "needs some in a function of your own"
            ) from error
    if not isinstance(model, nn.Module):
        raise OptionError(f"factory {spec!r} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def load_model(spec: str, path: StrPath, *, seed: int = 0) -> nn.Module:
    """A factory's model with the weights of a file; a file that `save` wrote sets the widths too."""
    model = build(spec, seed=seed)
    if _is_stored(path):
        return load(path, into=model)
    load_into(model, path)
    return model


def load_state(path: StrPath) -> dict[str, Tensor]:
    """Name → tensor on the CPU, from a .safetensors file or a torch file of tensors.

    A torch file holds a state dict, or a dict with one under "state_dict" or "model". Prefixes that
    DataParallel and torch.compile put before every name are dropped. Of a fusion, the zero blocks are filled in.
    """
    path = existing(path)
    if _is_stored(path):
        return load_dense(path)
    content = _read_safetensors(path) if path.suffix == SAFE else _read_torch(path)
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
    if _is_stored(path):
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


def save_state(model: nn.Module, path: StrPath) -> None:
    """Write a model's state dict, whole or not at all, as safetensors or as a torch file by the suffix.

    Tied tensors are written under all their names, so that the file loads like any other.

    Args:
        model: any module.
        path: ends in .safetensors, or in .pt, .pth, .bin or .ckpt.
    """
    path = check_writable(path)
    state = model.state_dict()
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        raise CheckpointError(f"{path} cannot be written: {shorten(odd)} of the state dict is not a tensor")
    state = {name: tensor.detach().cpu() for name, tensor in state.items()}
    with replacing(path) as file:
        if path.suffix == SAFE:
            write_tensors(file, {name: t.contiguous() for name, t in state.items()}, {"format": "pt"})
        else:
            torch.save(state, file)


def save_fusion(fusion: Fusion, path: StrPath) -> None:
    """Write a fusion: its non-zero blocks with plan and recipe as safetensors, or its state dict as a torch file."""
    path = check_writable(path)
    if path.suffix == SAFE:
        save(fusion, path)
    else:
        save_state(fusion.model, path)


def _is_stored(path: StrPath) -> bool:
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
    if path.is_dir():
        raise CheckpointError(f"{path} cannot be written: it is a folder; name a file in it")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise CheckpointError(f"{path} cannot be written: there is no folder {folder}; create it first")
    if not os.access(folder, os.W_OK):
        raise CheckpointError(f"{path} cannot be written: no permission in {folder}; choose another folder")
    for other in keep:
        if Path(other).exists() and path.exists() and os.path.samefile(path, other):
            raise CheckpointError(f"{path} is an input and would be overwritten; choose another output file")
    return path


def load_batches(path: StrPath, batch_size: int, *, like: Tensor) -> list[Tensor]:
    """The inputs in a file, split into batches of almost equal size.

    Args:
        path: a .npy, .safetensors or torch file that holds one (samples × …) tensor, or a dict with one.
        batch_size: the most samples of a batch.
        like: an input of the model; floating-point data takes its type.
    """
    inputs = _inputs_within(existing(path))
    if inputs.ndim == 0 or len(inputs) == 0:
        raise DataError(f"{path} holds no samples: its tensor has shape {tuple(inputs.shape)}")
    if batch_size < 1:
        raise OptionError(f"batch size {batch_size}: a batch has at least one sample")
    if inputs.is_floating_point() != like.is_floating_point():
        raise DataError(
            f"{path} holds {inputs.dtype} where the model takes {like.dtype}; save the data as the model is to see it"
        )
    return list(inputs.to(like.dtype).tensor_split(math.ceil(len(inputs) / batch_size)))


def _inputs_within(path: Path) -> Tensor:
    if path.suffix == ".npy":
        try:
            return torch.from_numpy(np.load(path, allow_pickle=False))
        except (ValueError, TypeError, EOFError, OSError) as error:
            raise DataError(f"{path} is not a .npy file of numbers; save the array with numpy.save") from error
    content = _read_safetensors(path) if path.suffix == SAFE else _read_torch(path)
    if isinstance(content, Tensor):
        return content
    tensors = [v for v in content.values() if isinstance(v, Tensor)] if isinstance(content, Mapping) else []
    if len(tensors) != 1:
        raise DataError(f"{path} holds {len(tensors)} tensors: save one tensor of inputs, or a dict with one")
    return tensors[0]


@contextmanager
def _current_folder_on_path() -> Iterator[None]:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def _import(name: str, spec: str) -> object:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise OptionError(
                f"factory {spec!r}: there is no module {error.name!r}; install it, or run where it lies"
            ) from error
        raise OptionError(f"factory {spec!r}: importing {name} failed: {first_line(error)}") from error


def _broken(path: Path) -> str:
    form = "safetensors file" if path.suffix == SAFE else "torch file of tensors"
    return f"{path} is truncated or not a {form}; save or copy it again"


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(_broken(path)) from error


def _read_torch(path: Path) -> Any:
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
        remedy = "use a factory that builds the widths of the file, or load_fused where a fusion wrote it"
    return f"{path} is of another model than {model}: {'; '.join(told)}. {remedy[0].upper()}{remedy[1:]}"


def _shape(tensor: object) -> str:
    return str(tuple(tensor.shape)) if isinstance(tensor, Tensor) else type(tensor).__name__
