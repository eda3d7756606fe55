"""Plans as plain values, exact to the last bit, so that a file can hold them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from ..core.arrays import Ints
from ..core.literals import Convention
from .pair import Interpolation, KernelPair
from .reduction import Plan, Reduction

LARGEST = 1 << 28  # bytes of unpacked text: a damaged or hostile file must not fill the memory


def to_record(plan: Plan) -> dict[str, Any]:
    """A plan as values that JSON can hold.

    What people ask for is there to read: widths, fused and isolated channels, costs. The index arrays and weights of
    all kernel pairs follow as one compressed text: the indices as the smallest integers that hold them, the weights as
    they are. Dense read kernels are left out: they may be larger than the model, whose weights were made with them.
    Only which weights have one is noted.
    """
    pairs = [p for r in plan.values() for p in (*r.pairs, *r.frames)]
    kind = _smallest(max((max(p.targets, p.sources) for p in pairs), default=0))
    indices = [a.astype(kind).tobytes() for p in pairs for a in (p.target, p.source)]
    weights = [a.astype("<f8").tobytes() for p in pairs for a in (p.write, p.read)]
    nearest = [p.interpolation.nearest.astype(kind).tobytes() for p in pairs if p.interpolation is not None]
    return {
        "mix": list(plan.mix),
        "convention": plan.convention,
        "spaces": {name: _reduction_record(r) for name, r in plan.items()},
        "index": kind,
        "arrays": squeezed(b"".join(indices + weights + nearest)),
    }


def from_record(record: Mapping[str, Any], limit: int = LARGEST) -> Plan:
    """The plan of a record, without dense read kernels; raises KeyError, TypeError or ValueError where that is none.

    Args:
        record: what `to_record` returned.
        limit: the number of bytes that its index arrays and weights may have together.
    """
    mix = tuple(float(share) for share in record["mix"])
    if record["convention"] not in ("value", "mass"):
        raise ValueError(f"the convention {record['convention']!r} is not known")
    spaces = record["spaces"]
    sizes = [size for entry in spaces.values() for size in (*entry["pairs"], *entry["world"])]
    readers = [
        _readers(entry) if number < len(entry["pairs"]) else None
        for entry in spaces.values()
        for number in range(len(entry["pairs"]) + len(entry["world"]))
    ]
    pairs = iter(_pairs(sizes, readers, record["arrays"], np.dtype(record["index"]), limit))
    reductions = {}
    for name, entry in spaces.items():
        if not len(entry["pairs"]) == len(entry["world"]) == len(entry["isolated"]) == len(mix):
            raise ValueError(f"the space {name} is not of {len(mix)} models")
        reductions[name] = Reduction(
            pairs=tuple(next(pairs) for _ in mix),
            frames=tuple(next(pairs) for _ in mix),
            fused=int(entry["fused"]),
            isolated=tuple(int(n) for n in entry["isolated"]),
            cost=float(entry["cost"]),
            sweeps=int(entry["sweeps"]),
            converged=bool(entry["converged"]),
        )
        for group in (reductions[name].pairs, reductions[name].frames):
            if len({p.targets for p in group}) > 1:
                raise ValueError(f"the space {name} has several widths")
            if group[0].targets > sum(len(p.target) for p in group):
                raise ValueError(f"the space {name} has channels that no model writes")
    return Plan(reductions, mix, cast(Convention, record["convention"]))


def squeezed(data: bytes) -> str:
    """Bytes as compressed text of characters that JSON does not escape."""
    return base64.b85encode(zlib.compress(data, 9)).decode("ascii")


def expanded(text: str, limit: int | None = None) -> bytes:
    """The bytes of a compressed text; ValueError where it is none, or where there are more than the limit."""
    stream, limit = zlib.decompressobj(), LARGEST if limit is None else limit
    try:
        data = stream.decompress(base64.b85decode(text), limit + 1)
    except zlib.error as error:
        raise ValueError(f"not a compressed text: {error}") from error
    if not stream.eof:
        raise ValueError(f"a compressed text that is cut off or longer than {limit} bytes")
    return data


def _readers(entry: Mapping[str, Any]) -> list[str] | None:
    """The weights with dense read kernels; None where a space is not interpolated."""
    return [str(name) for name in entry["dense"]] if "dense" in entry else None


def _reduction_record(reduction: Reduction) -> dict[str, Any]:
    interpolated = any(p.interpolation is not None for p in reduction.pairs)
    return {
        **({"dense": sorted(reduction.dense_readers)} if interpolated else {}),
        "fused": int(reduction.fused),
        "isolated": [int(n) for n in reduction.isolated],
        "cost": float(reduction.cost),
        "sweeps": int(reduction.sweeps),
        "converged": bool(reduction.converged),
        "pairs": [_size(p) for p in reduction.pairs],
        "world": [_size(p) for p in reduction.frames],
    }


def _size(pair: KernelPair) -> list[int]:
    """Entries, target channels and source channels."""
    return [len(pair.target), int(pair.targets), int(pair.sources)]


def _smallest(largest: int) -> str:
    """The smallest unsigned integer type that holds a number, little-endian."""
    return next(kind for kind in ("<u1", "<u2", "<u4", "<u8") if largest <= np.iinfo(kind).max)


def _pairs(
    sizes: list[list[int]], readers: list[list[str] | None], text: str, kind: np.dtype[Any], limit: int
) -> list[KernelPair]:
    """Kernel pairs of the given sizes from all their indices, then all their weights, then what stands for what."""
    entries = sum(size[0] for size in sizes)
    standing = sum(size[2] for size, names in zip(sizes, readers, strict=True) if names is not None)
    if kind.kind != "u" or any(type(n) is not int or n < 0 for size in sizes for n in size):
        raise ValueError("the sizes of kernel pairs are not whole numbers")
    length = 2 * entries * (kind.itemsize + 8) + standing * kind.itemsize
    if length > limit:
        raise ValueError(f"{entries} entries of kernel pairs are more than such a file can hold")
    data = expanded(text, length)
    if len(data) != length:
        raise ValueError(f"{len(data)} bytes do not hold {entries} entries of kernel pairs")
    indices = np.frombuffer(data, kind, 2 * entries).astype(np.int64)
    weights = np.frombuffer(data, "<f8", 2 * entries, 2 * entries * kind.itemsize).astype(np.float64)
    nearest = np.frombuffer(data, kind, standing, 2 * entries * (kind.itemsize + 8)).astype(np.int64)
    found, at, stood = [], 0, 0
    for (count, targets, sources), names in zip(sizes, readers, strict=True):
        middle, end = at + count, at + 2 * count
        target, source = _within(indices[at:middle], targets), _within(indices[middle:end], sources)
        write, read = weights[at:middle].copy(), weights[middle:end].copy()
        interpolation = None
        if names is not None:
            own = _within(nearest[stood : stood + sources], targets)
            interpolation, stood = Interpolation(own, dict.fromkeys(names)), stood + sources
        found.append(KernelPair(target, source, write, read, targets, sources, interpolation))
        at = end
    return found


def _within(index: Ints, length: int) -> Ints:
    if len(index) and int(index.max()) >= length:
        raise ValueError(f"channel {int(index.max())} of a space with {length}")
    return index.copy()
