"""The header of a stored fusion: recipe, plan, sources and versions, as text in the metadata of its file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..blueprint import NormLayer
from ..core.modules import inside
from ..core.text import shorten, table
from ..errors import CheckpointError
from ..kernels import Plan
from ..kernels import record as plans
from ..kernels.record import expanded, squeezed
from ..rotation import Rotations
from . import packing, rotations
from .files import is_plain_name
from .packing import Packing

# Formats: the second has norms with views in the place of the user's, the third how the models were rotated, the fourth
# tensors in files of their own.
PLAIN, WITH_VIEWS, WITH_ROTATIONS, IN_SHARDS = FORMATS = 1, 2, 3, 4
RECORD = "partialfusion.record"  # keys in the metadata of the file; later formats keep these two and their meaning
DIGEST = "partialfusion.sha256"
MARGIN = 1 << 20  # bytes that the compressed parts of a record may have in any file
PLAN_RATIO, LAYOUT_RATIO = 32, 4  # and so many times the size of the file; 3.2 and 0.3 are the most found in real ones
NORM: dict[str, tuple[type, ...]] = {  # what the settings of a norm with views may be
    **dict.fromkeys(("weight", "bias"), (str, type(None))),
    **dict.fromkeys(("eps", "offset"), (float, int)),
    **dict.fromkeys(("centred", "positions"), (bool,)),
    "dim": (int,),
    "then": (list, tuple),
}
VIEWS = "views", "shares"  # the tensors of a norm with views that the user's norm does not have

Integers = Mapping[str, Mapping[str, int]]  # path of a module → attribute → number


@dataclass(frozen=True)
class Source:
    """A model that was fused: its class and the hash of its state dict."""

    model: str
    sha256: str


@dataclass(frozen=True, eq=False, repr=False)
class Stored:
    """The header of a stored fusion. Prints as a table.

    Attributes:
        model: the class of the fused model.
        recipe: the options of the fusion: method, features, alpha, mix, convention, seed and so on.
        sources: the class and the hash of every model that was fused.
        plan: space → reduction.
        dtype: the precision that parameters were narrowed to for the file, or None.
        version: the version of this library that wrote the file.
        torch: the version of PyTorch that wrote the file.
        packings: how every tensor is stored.
        integers: integer attributes of the user's own modules, some of which repeat widths.
        norms: path → settings of every norm with views (`partialfusion.nn.ViewNorm`) in the place of the user's.
        payload: the hash of all tensors in the file itself.
        rotations: how the models were rotated before they were fused.
        shards: name of another file in the same folder → the hash of the tensors in it.
    """

    model: str
    recipe: Mapping[str, Any]
    sources: tuple[Source, ...]
    plan: Plan
    dtype: str | None
    version: str
    torch: str
    packings: Mapping[str, Packing]
    integers: Integers
    norms: Mapping[str, NormLayer]
    payload: str
    rotations: Rotations | None = None
    shards: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        rows = [
            (name, r.width, r.fused, " + ".join(map(str, r.isolated)), f"{r.cost:.4g}") for name, r in self.plan.items()
        ]
        options = ", ".join(f"{name}={value}" for name, value in self.recipe.items())
        return "\n".join(
            [
                f"{self.model}: {options}",
                table(("space", "width", "fused", "isolated", "cost"), rows, align="<>>>>"),
                *([f"rotated: {shorten(self.rotations.spaces)}"] if self.rotations is not None else []),
                *(f"source {k}: {s.model} {s.sha256}" for k, s in enumerate(self.sources)),
                f"stored as {self.dtype or 'it was'} by partialfusion {self.version}, torch {self.torch}",
            ]
        )


def to_metadata(stored: Stored) -> dict[str, str]:
    """The metadata of a safetensors file: one record, and its hash."""
    layout = {**packing.to_record(stored.packings), "integers": stored.integers}
    if _format(stored) != PLAIN:
        layout["norms"] = {path: _without_path(norm) for path, norm in stored.norms.items()}
    record = {
        "format": _format(stored),
        **({"shards": dict(stored.shards)} if stored.shards else {}),
        "model": stored.model,
        "recipe": stored.recipe,
        "sources": [{"model": s.model, "sha256": s.sha256} for s in stored.sources],
        "dtype": stored.dtype,
        "partialfusion": stored.version,
        "torch": stored.torch,
        "payload": stored.payload,
        "plan": plans.to_record(stored.plan),
        "layout": squeezed(_text(layout).encode()),
    }
    if stored.rotations is not None:
        record["rotations"] = rotations.to_record(stored.rotations)
    text = _text(record)
    return {"format": "pt", RECORD: text, DIGEST: _hash(text)}


def _format(stored: Stored) -> int:
    if stored.shards:
        return IN_SHARDS
    return WITH_ROTATIONS if stored.rotations is not None else WITH_VIEWS if stored.norms else PLAIN


def from_file(file: Any, path: Path, size: int | None = None) -> Stored:
    """The header of an open safetensors file, or an error that says what is wrong with the file.

    Args:
        file: the open file.
        path: its path.
        size: the bytes of all that the header describes, where these are not in the file and its shards.
    """
    metadata: Mapping[str, str] = file.metadata() or {}
    if RECORD not in metadata or DIGEST not in metadata:
        raise CheckpointError(
            f"{path} is a safetensors file, but not of a saved fusion; read it with safetensors.torch.load_file and "
            "load_state_dict"
        )
    text = metadata[RECORD]
    if _hash(text) != metadata[DIGEST]:
        raise CheckpointError(damaged(path, "its header is not the one that was written"))
    try:
        record = json.loads(text)
        if type(record["format"]) is not int or record["format"] not in FORMATS:
            raise CheckpointError(
                f"{path} has format {record['format']!r}, written by partialfusion {record.get('partialfusion')}; "
                f"this version reads {FORMATS[0]} to {FORMATS[-1]}: install the version that wrote it, or a later one"
            )
        shards = _shards(record)
        if size is None:
            files = [path, *(shard_path(path, name) for name in shards)]
            size = sum(f.stat().st_size for f in files if f.is_file())
        stored = replace(_stored(record, size), shards=shards)
        if record["format"] != WITH_ROTATIONS:
            return stored
        return replace(stored, rotations=rotations.from_record(record["rotations"], file, stored.plan))
    except CheckpointError:
        raise
    except Exception as error:  # a digest can be made for any text: nothing is known about what it says
        raise CheckpointError(damaged(path, f"its header makes no sense ({type(error).__name__}: {error})")) from error


def shard_path(path: Path, name: str) -> Path:
    """The file of that name beside a file."""
    return path.with_name(name)


def _shards(record: Mapping[str, Any]) -> dict[str, str]:
    """File → hash; the names are of files in the same folder, whatever the record says."""
    found = {str(name): str(sha256) for name, sha256 in record.get("shards", {}).items()}
    if not all(map(is_plain_name, found)):
        raise ValueError("a shard that is not in the same folder")
    return found


def damaged(path: Path, why: str) -> str:
    return f"{path} is damaged: {why}; save or copy it again"


def _stored(record: Mapping[str, Any], size: int) -> Stored:
    """The header of a record.

    A file of this size holds numbers for all channels of the plan, and names all tensors in plain text. What is
    compressed in the record can therefore not be many times larger, and must not fill the memory if it claims to be.
    """
    plan = plans.from_record(record["plan"], MARGIN + PLAN_RATIO * size)
    layout = json.loads(expanded(record["layout"], MARGIN + LAYOUT_RATIO * size))
    packings = packing.from_record(layout, plan.models)
    return Stored(
        model=str(record["model"]),
        recipe=dict(record["recipe"]),
        sources=tuple(Source(s["model"], s["sha256"]) for s in record["sources"]),
        plan=plan,
        dtype=record["dtype"],
        version=str(record["partialfusion"]),
        torch=str(record["torch"]),
        packings=packings,
        integers={path: {n: int(v) for n, v in values.items()} for path, values in layout["integers"].items()},
        norms=_norms(layout["norms"], packings) if record["format"] != PLAIN else {},
        payload=str(record["payload"]),
    )


def _without_path(norm: NormLayer) -> dict[str, Any]:
    return {name: value for name, value in asdict(norm).items() if name != "path"}


def _norms(record: Mapping[str, Mapping[str, Any]], packings: Mapping[str, Packing]) -> dict[str, NormLayer]:
    """The norms of a record, once they are known to fit the tensors."""
    found = {}
    for path, settings in record.items():
        norm = NormLayer(path, **settings)
        wrong = any(type(getattr(norm, name)) not in kind for name, kind in NORM.items())
        if wrong or norm.dim >= 0 or norm.eps < 0 or any(type(name) is not str for name in norm.then):
            raise ValueError(f"{path} has no norm with the settings {dict(settings)}")
        views, shares = (packings[inside(path, name)].shape for name in VIEWS)
        affine = [inside(path, name) for name in (norm.weight, norm.bias) if name is not None]
        sizes = {math.prod(packings[name].shape) for name in affine if name in packings}  # a tied one has another name
        if len(views) != 2 or views != shares or not sizes <= {views[1]}:
            raise ValueError(f"the views of {path} have shape {views}")
        found[path] = norm
    return found


def filled_by_refit(recipe: Mapping[str, Any]) -> bool:
    """Whether, by the options of a fusion, refitting was free to fill its zero blocks."""
    return bool(recipe.get("refit")) and recipe.get("zeros") == "free"


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    """Options without a JSON form: mappings become objects, anything else its text."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
