"""The tensors of a checkpoint directory, read one at a time when they are asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.blocks import Part, parts, taken
from ..core.modules import canonical_names, named_tensors, not_finite
from ..core.text import shorten
from ..errors import CheckpointError, OptionError
from ..io.digest import Digest
from ..io.files import DTYPES, StrPath, reading
from ..io.hf import FITTING, folder_of, weight_files
from .skeleton import Skeleton

log = logging.getLogger(__name__)

TYPES = {text: dtype for dtype, text in DTYPES.items()}

Place = tuple[str, str]  # a file, and the name of a tensor in it
Entry = tuple[tuple[int, ...], str, Path]  # shape, type and file of a tensor


@dataclass(frozen=True, eq=False)
class TensorFiles:
    """Where the tensors of a model are. Holds no numbers but those of small buffers, so it can be sent to workers.

    Attributes:
        folder: the checkpoint directory.
        places: name of a tensor, any name of a tied one → where it is stored.
        buffers: name → buffer that no file holds.
        types: name, any name of a tied one → type that it is read in: that in the file, but for a file of mixed types.
        size: the bytes of all files.
    """

    folder: str
    places: Mapping[str, Place]
    buffers: Mapping[str, Tensor]
    types: Mapping[str, torch.dtype]
    size: int

    @classmethod
    def of(cls, path: StrPath, skeleton: Skeleton) -> TensorFiles:
        """The tensors of a local directory for a model that has its config; all of them must be there and fit."""
        folder = folder_of(path)
        stored = dict(_stored(folder))
        names = _translated(stored, skeleton.model)
        first = canonical_names(skeleton.model)
        found: dict[str, str] = {}  # first name → name in the files
        for name in sorted(first, key=lambda n: n != first[n]):
            if name in names:
                found.setdefault(first[name], names[name])
        tensors = named_tensors(skeleton.model)
        missing = sorted(skeleton.state_names - found.keys())
        if missing:
            raise CheckpointError(
                f"{folder} does not fit {type(skeleton.model).__name__}: it lacks {shorten(missing)}; load it with "
                "transformers and save it again, which writes all tensors under the names of today"
            )
        for name, held in found.items():
            shape, dtype, _ = stored[held]
            if shape != tuple(tensors[name].shape):
                raise CheckpointError(
                    f"{folder} does not fit {type(skeleton.model).__name__}: {name} has shape {shape} in the files and "
                    f"{tuple(tensors[name].shape)} by its config; {FITTING}"
                )
            if dtype not in TYPES:
                raise CheckpointError(
                    f"{folder}: {name} is stored as {dtype}, which cannot be fused; use the original model in float32, "
                    "bfloat16 or float16"
                )
        for name in (n for n in names if n in first and names[n] != found[first[n]]):
            if not _same_numbers(stored, names[name], found[first[name]]):
                raise CheckpointError(
                    f"{folder} stores {name} and {first[name]} with different numbers, and its config ties them: let "
                    "the config keep them apart (tie_word_embeddings=false), or load the model with transformers and "
                    "save it again as you mean it"
                )
        unused = sorted(set(stored) - set(found.values()) - {names[n] for n in names if n in first})
        if unused:
            log.warning("%s also holds %s, which the model does not have: left out", folder, shorten(unused))
        parameters = {name for name in found if isinstance(tensors[name], nn.Parameter)}
        cast = _one_type(folder, skeleton.model, {TYPES[stored[found[name]][1]] for name in parameters})
        types = {name: cast if cast and name in parameters else TYPES[stored[held][1]] for name, held in found.items()}
        files = {file for _, _, file in stored.values()}
        return cls(
            str(folder),
            {name: (str(stored[found[own]][2]), found[own]) for name, own in first.items() if own in found},
            skeleton.buffers,
            {name: types[own] for name, own in first.items() if own in types},
            sum(file.stat().st_size for file in files),
        )

    def read(self, name: str, part: Part | None = None) -> Tensor:
        """The numbers of a tensor, or of a part of it, in its type."""
        if name not in self.places:
            return taken(self.buffers[name], part)
        file, held = self.places[name]
        with reading(Path(file)) as opened:  # a file is mapped: only what is looked at is read
            return taken(opened.get_tensor(held), part).to(self.types[name])

    def form(self, name: str) -> Tensor:
        """A tensor on the meta device with the type and the shape that are read."""
        if name not in self.places:
            return self.buffers[name].to("meta")
        file, held = self.places[name]
        with reading(Path(file)) as opened:
            return torch.empty(opened.get_slice(held).get_shape(), dtype=self.types[name], device="meta")

    def surveyed(self, names: Sequence[str]) -> str:
        """The hash of the state dict with these names, after one look at all its numbers, which must be finite."""
        seen = Digest()
        for name in sorted(names):
            form, bad = self.form(name), 0
            seen.begin(name, form)
            for part in parts(form):
                tensor = self.read(name, part)
                bad += not_finite(tensor) if tensor.is_floating_point() else 0
                seen.more(tensor)
            if bad:
                raise OptionError(
                    f"{self.folder}: {name} {tuple(form.shape)} holds {bad} NaN or infinite values; load a sound "
                    "checkpoint"
                )
        return seen.hex()


def _stored(folder: Path) -> Iterator[tuple[str, Entry]]:
    """Name → shape, type and file of every tensor in a directory."""
    for path in weight_files(folder):
        with reading(path) as opened:
            for key in opened.keys():  # noqa: SIM118
                entry = opened.get_slice(key)
                yield key, (tuple(entry.get_shape()), entry.get_dtype(), path)


def _one_type(folder: Path, model: Any, types: set[torch.dtype]) -> torch.dtype | None:
    """The type that transformers would load all parameters in, where those in the files are mixed; None where they stay
    as they are: they have one type, or the class wants some of them in single precision."""
    mixed = [t for t in types if t.is_floating_point]
    if len(mixed) < 2 or any(getattr(model, f"_keep_in_fp32_modules{k}", None) for k in ("", "_strict")):
        return None
    found: torch.dtype | None = getattr(model.config, "dtype", None)
    told = " and ".join(sorted(str(t).removeprefix("torch.") for t in mixed))
    if found is None:
        raise OptionError(
            f"{folder} holds parameters in {told}, and its config does not say which type the model has: load it with "
            "transformers and save it again, which writes a single type"
        )
    log.warning("%s holds parameters in %s: all are read in %s, as its config says", folder, told, found)
    return found


def _same_numbers(stored: Mapping[str, Entry], one: str, other: str) -> bool:
    """Whether two tensors in the files are the same; nothing is read if their shapes or types differ."""
    if stored[one][:2] != stored[other][:2]:
        return False
    with reading(stored[one][2]) as ours, reading(stored[other][2]) as theirs:
        return torch.equal(ours.get_tensor(one), theirs.get_tensor(other))


def _translated(stored: Iterable[str], model: Any) -> dict[str, str]:
    """Name in the model → name in the files, which may have been saved with or without the model's head, or under the
    names that the class had earlier."""
    known, rename = canonical_names(model), _renaming(model)
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    found: dict[str, str] = {}
    for name in stored:
        for own in dict.fromkeys((name, rename(name))):
            spelled = (own, f"{prefix}{own}", own.removeprefix(prefix))
            if any(n in known for n in spelled):
                found.setdefault(next(n for n in spelled if n in known), name)
                break
    return found


def _renaming(model: Any) -> Callable[[str], str]:
    """What transformers makes of the name of a tensor in a file; those that it would compute from several keep theirs,
    and are then missing."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming, rename_source_key
    except ImportError:  # another version, without such names or elsewhere
        return lambda name: name
    renamings = [r for r in get_model_conversion_mapping(model) if isinstance(r, WeightRenaming)]
    return lambda name: str(rename_source_key(name, renamings, [])[0])
