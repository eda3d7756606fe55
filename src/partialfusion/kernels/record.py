"""Plans as plain values, exact to the last bit, so that a file can hold them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from ..core.arrays import Ints
from ..core.literals import Convention
from .pair import KernelPair
from .reduction import Plan, Reduction

LARGEST = 1 << 28  # bytes of unpacked text: a damaged or hostile file must not fill the memory


def to_record(plan: Plan) -> dict[str, Any]:
    """A plan as values that JSON can hold.

    What people ask for is there to read: widths, fused and isolated channels, costs. The index arrays and weights of
    all kernel pairs follow as one compressed text: the indices as the smallest integers that hold them, the weights as
    they are.
    """
    pairs = [p for r in plan.values() for p in (*r.pairs, *r.frames)]
    kind = _smallest(max((max(p.targets, p.sources) for p in pairs), default=0))
    indices = [a.astype(kind).tobytes() for p in pairs for a in (p.target, p.source)]
    weights = [a.astype("<f8").tobytes() for p in pairs for a in (p.write, p.read)]
    return {
        "mix": list(plan.mix),
        "convention": plan.convention,
        "spaces": {name: _reduction_record(r) for name, r in plan.items()},
        "index": kind,
        "arrays": squeezed(b"".join(indices + weights)),
    }


def from_record(record: Mapping[str, Any]) -> Plan:
    """The plan of a record; raises KeyError, TypeError or ValueError where that is none."""
    mix = tuple(float(share) for share in record["mix"])
    if record["convention"] not in ("value", "mass"):
        raise ValueError(f"the convention {record['convention']!r} is not known")
    spaces = record["spaces"]
    sizes = [size for entry in spaces.values() for size in (*entry["pairs"], *entry["world"])]
    pairs = iter(_pairs(sizes, expanded(record["arrays"]), np.dtype(record["index"])))
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


def _reduction_record(reduction: Reduction) -> dict[str, Any]:
    return {
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


def _pairs(sizes: list[list[int]], data: bytes, kind: np.dtype[Any]) -> list[KernelPair]:
    """Kernel pairs of the given sizes from all their indices, then all their weights."""
    entries = sum(size[0] for size in sizes)
    negative = any(n < 0 for size in sizes for n in size)
    if negative or kind.kind != "u" or len(data) != 2 * entries * (kind.itemsize + 8):
        raise ValueError(f"{len(data)} bytes do not hold {entries} entries of kernel pairs")
    indices = np.frombuffer(data, kind, 2 * entries).astype(np.int64)
    weights = np.frombuffer(data, "<f8", offset=2 * entries * kind.itemsize).astype(np.float64)
    found, at = [], 0
    for count, targets, sources in sizes:
        middle, end = at + count, at + 2 * count
        target, source = _within(indices[at:middle], targets), _within(indices[middle:end], sources)
        write, read = weights[at:middle].copy(), weights[middle:end].copy()
        found.append(KernelPair(target, source, write, read, targets, sources))
        at = end
    return found


def _within(index: Ints, length: int) -> Ints:
    if len(index) and int(index.max()) >= length:
        raise ValueError(f"channel {int(index.max())} of a space with {length}")
    return index.copy()
