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


def from_record(record: Mapping[str, Any]) -> Plan:
    """The plan of a record, without dense read kernels; raises KeyError, TypeError or ValueError where that is none."""
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
    pairs = iter(_pairs(sizes, readers, expanded(record["arrays"]), np.dtype(record["index"])))
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
        if len({p.targets for p in reductions[name].pairs}) > 1:
            raise ValueError(f"the space {name} has several widths")
    return Plan(reductions, mix, cast(Convention, record["convention"]))


def squeezed(data: bytes) -> str:
    """Bytes as compressed text of characters that JSON does not escape."""
    return base64.b85encode(zlib.compress(data, 9)).decode("ascii")


def expanded(text: str) -> bytes:
    """The bytes of a compressed text; ValueError where it is none."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(base64.b85decode(text), LARGEST)
    except zlib.error as error:
        raise ValueError(f"not a compressed text: {error}") from error
    if not stream.eof:
        raise ValueError(f"a compressed text that is cut off or longer than {LARGEST} bytes")
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
    sizes: list[list[int]], readers: list[list[str] | None], data: bytes, kind: np.dtype[Any]
) -> list[KernelPair]:
    """Kernel pairs of the given sizes from all their indices, then all their weights, then what stands for what."""
    entries = sum(size[0] for size in sizes)
    standing = sum(size[2] for size, names in zip(sizes, readers, strict=True) if names is not None)
    negative = any(n < 0 for size in sizes for n in size)
    if negative or kind.kind != "u" or len(data) != 2 * entries * (kind.itemsize + 8) + standing * kind.itemsize:
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
