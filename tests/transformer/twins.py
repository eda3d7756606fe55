"""Twins made by hand: the same function with stream, heads, channels within heads and MLPs in another order, or with
heads that are rotated, too.

A family says, by patterns of names, which axis of which tensor belongs to which space; the library is not asked. In a
pattern a dot is a dot and # a number; `{block}` in the name of a space is what the group of that name matched, and
`{next}`, `{previous}` are the stages beside `{stage}`. Spaces that end in :q, :k, :v, :o, :heads and :qkv belong to the
heads of one attention; every other one is reordered freely. An axis with several spaces holds them side by side.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

HEAD_PARTS = ("q", "k", "v", "o", "heads", "qkv")


@dataclass(frozen=True)
class Axis:
    """An axis of the tensors whose name fits, and the spaces on it, side by side."""

    pattern: str
    axis: int
    spaces: str

    def names(self, tensor: str) -> tuple[str, ...]:
        """The spaces on this axis of a tensor; none where the name does not fit."""
        match = re.fullmatch(self.pattern.replace(".", r"\.").replace("#", r"\d+"), tensor)
        if match is None:
            return ()
        groups = match.groupdict()
        if "stage" in groups:
            stage = int(groups["stage"])
            groups |= {"next": str(stage + 1), "previous": str(stage - 1)}
        return tuple(space.format(**groups) for space in self.spaces.split())


@dataclass(frozen=True)
class Family:
    """What may be reordered.

    Args:
        axes: every axis of every tensor that carries a space.
        head_size: channels of a head.
        rotary: queries and keys are rotated in fixed pairs, so their channels stay in place within a head.
        together: spaces whose channels move in groups of so many neighbours, and stay in place within a group.
        left_alone: what is not described, and why.
    """

    axes: tuple[Axis, ...]
    head_size: int = 16
    rotary: bool = False
    together: dict[str, int] = field(default_factory=dict)
    left_alone: str = ""


def twin_of(model: nn.Module, family: Family, seed: int = 0) -> nn.Module:
    """A copy that computes the same."""
    rng = np.random.default_rng(seed)
    state = model.state_dict()
    orders = _orders(family, spaces(model, family), rng)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in twin.state_dict().items():
            value = state[name]
            for axis, names in _axes(family, name, value):
                value = value.index_select(axis, torch.from_numpy(_side_by_side([orders[n] for n in names])))
            tensor.copy_(value)
    return twin


def rotated_twin_of(model: nn.Module, family: Family, seed: int = 0) -> nn.Module:
    """A twin in which, beside the orders, the channels within heads are rotated: queries with keys, and values."""
    twin = twin_of(model, family, seed)
    rng = np.random.default_rng(seed)
    rotations: dict[str, np.ndarray] = {}
    widths = spaces(twin, family)
    for space in widths:
        block, _, part = space.rpartition(":")
        if block and part in HEAD_PARTS and space not in rotations:
            rotations |= _head_rotations(family, block, widths, rng)
    with torch.no_grad():
        for name, tensor in twin.state_dict().items():
            for axis, names in _axes(family, name, tensor):
                if any(n in rotations for n in names):
                    parts = [torch.from_numpy(rotations.get(n, np.eye(widths[n]))) for n in names]
                    rows = tensor.movedim(axis, 0)
                    rows.copy_(torch.einsum("ij,i...->j...", torch.block_diag(*parts), rows.double()))
    return twin


def spaces(model: nn.Module, family: Family) -> dict[str, int]:
    """Space → its width, read off the shapes of the tensors."""
    widths: dict[str, int] = {}
    for name, tensor in model.state_dict().items():
        for axis, names in _axes(family, name, tensor):
            for space in names:
                width = tensor.shape[axis] // len(names)
                assert widths.setdefault(space, width) == width, f"{space}: {widths[space]} and {width} in {name}"
    return widths


def streams(widths: dict[str, int]) -> dict[str, int]:
    return {space: width for space, width in widths.items() if space.startswith("stream")}


def heads(widths: dict[str, int], family: Family) -> dict[str, int]:
    """Attention → its number of (query) heads."""
    sizes = {"q": family.head_size, "qkv": 3 * family.head_size}
    found = [(space, *space.rpartition(":")[::2]) for space in widths]
    return {block: widths[space] // sizes[part] for space, block, part in found if block and part in sizes}


def unmatched(model: nn.Module, family: Family) -> list[str]:
    """Patterns that fit no tensor: misspelt, or a name has changed."""
    names = list(model.state_dict())
    return [a.pattern for a in family.axes if not a.pattern.endswith("bias") and not any(map(a.names, names))]


def _axes(family: Family, name: str, tensor: torch.Tensor) -> list[tuple[int, tuple[str, ...]]]:
    found = [(a.axis % max(1, tensor.dim()), a.names(name)) for a in family.axes]
    found = [(axis, names) for axis, names in found if names]
    assert len({axis for axis, _ in found}) == len(found), f"two patterns fit one axis of {name}"
    return found


def _side_by_side(orders: list[np.ndarray]) -> np.ndarray:
    starts = np.cumsum([0, *(len(o) for o in orders[:-1])])
    return np.concatenate([start + order for start, order in zip(starts, orders, strict=True)])


def _orders(family: Family, widths: dict[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    orders: dict[str, np.ndarray] = {}
    for space, width in widths.items():
        block, _, part = space.rpartition(":")
        if block and part in HEAD_PARTS:
            if space not in orders:
                orders |= _heads(family, block, widths, rng)
        else:
            size = family.together.get(space, 1)
            orders[space] = (_derangement(width // size, rng)[:, None] * size + np.arange(size)).ravel()
    return orders


def _heads(family: Family, block: str, widths: dict[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Key heads in another order, their query heads with them and in the same order among themselves."""
    size = family.head_size
    count = heads(widths, family)[block]
    key_heads = widths.get(f"{block}:k", count * size) // size
    share = count // key_heads
    still = np.tile(np.arange(size), (key_heads, 1))
    inner_qk = still if family.rotary else np.stack([_derangement(size, rng) for _ in range(key_heads)])
    inner_v = np.stack([_derangement(size, rng) for _ in range(key_heads)])
    keys = _derangement(key_heads, rng)
    queries = np.concatenate([key * share + np.arange(share) for key in keys])
    owner = queries // share

    def channels(head: np.ndarray, inner: np.ndarray) -> np.ndarray:
        return (head[:, None] * size + inner).ravel()

    packed = [
        queries[:, None] * 3 * size + i * size + inner[owner] for i, inner in enumerate([inner_qk] * 2 + [inner_v])
    ]
    return {
        f"{block}:q": channels(queries, inner_qk[owner]),
        f"{block}:k": channels(keys, inner_qk[keys]),
        f"{block}:v": channels(keys, inner_v[keys]),
        f"{block}:o": channels(queries, inner_v[owner]),
        f"{block}:heads": queries,
        f"{block}:qkv": np.concatenate(packed, 1).ravel(),
    }


def _head_rotations(
    family: Family, block: str, widths: dict[str, int], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """One rotation for the queries and keys of every key head, and one for its values."""
    size = family.head_size
    count = heads(widths, family)[block]
    key_heads = widths.get(f"{block}:k", count * size) // size
    drawn = np.linalg.qr(rng.standard_normal((2, key_heads, size, size)))[0]
    qk, v = (np.stack([np.eye(size)] * key_heads) if family.rotary else drawn[0]), drawn[1]

    def diagonal(*blocks: np.ndarray) -> np.ndarray:
        return torch.block_diag(*map(torch.from_numpy, blocks)).numpy()

    owner = np.arange(count) * key_heads // count
    found = {
        "q": diagonal(*qk[owner]),
        "k": diagonal(*qk),
        "v": diagonal(*v),
        "o": diagonal(*v[owner]),
        "qkv": diagonal(*(part for q, w in zip(qk, v, strict=True) for part in (q, q, w))),
    }
    return {f"{block}:{part}": rotation for part, rotation in found.items() if f"{block}:{part}" in widths}


def _derangement(n: int, rng: np.random.Generator) -> np.ndarray:
    """An order in which nothing stays in its place, where there is one."""
    order = rng.permutation(n)
    while n > 1 and (order == np.arange(n)).any():
        order = rng.permutation(n)
    return order


# The vocabulary of the descriptions. A weight is (out, in), a convolution's (out, in, height, width).


def along(pattern: str, space: str, axis: int = -1) -> list[Axis]:
    """A tensor with one axis of channels: tokens, tables, layer scale, q_bias."""
    return [Axis(pattern, axis, space)]


def writes(module: str, space: str) -> list[Axis]:
    return [Axis(f"{module}.weight", 0, space), Axis(f"{module}.bias", 0, space)]


def reads(module: str, space: str) -> list[Axis]:
    return [Axis(f"{module}.weight", 1, space)]


def linear(module: str, source: str, target: str) -> list[Axis]:
    return writes(module, target) + reads(module, source)


def transposed(module: str, source: str, target: str) -> list[Axis]:
    """GPT-2's Conv1D: (in, out)."""
    return [Axis(f"{module}.weight", 0, source), Axis(f"{module}.weight", 1, target), Axis(f"{module}.bias", 0, target)]


def norm(module: str, space: str) -> list[Axis]:
    return writes(module, space)


def batch_norm(module: str, space: str) -> list[Axis]:
    return writes(module, space) + along(f"{module}.running_(mean|var)", space)


def mlp(block: str, enter: str, leave: str, stream: str = "stream") -> list[Axis]:
    """Two layers, or three where the first is gated: `enter` may fit two modules."""
    block = f"(?P<block>{block})"
    return linear(f"{block}.{enter}", stream, "{block}:mlp") + linear(f"{block}.{leave}", "{block}:mlp", stream)


def attention(block: str, modules: str, stream: str = "stream", memory: str = "", heads: str = "{block}") -> list[Axis]:
    """Queries, keys, values and output in four modules; keys and values may read another stream."""
    q, k, v, o = (f"(?P<block>{block}).{module}" for module in modules.split())
    return [
        *linear(q, stream, f"{heads}:q"),
        *linear(k, memory or stream, f"{heads}:k"),
        *linear(v, memory or stream, f"{heads}:v"),
        *linear(o, f"{heads}:o", stream),
    ]


def packed(block: str, qkv: str, out: str, stream: str = "stream", layout: str = "") -> list[Axis]:
    """Queries, keys and values in one module, side by side."""
    block = f"(?P<block>{block})"
    layout = layout or "{block}:q {block}:k {block}:v"
    return linear(f"{block}.{qkv}", stream, layout) + linear(f"{block}.{out}", "{block}:o", stream)


def torch_attention(block: str, stream: str = "stream") -> list[Axis]:
    """nn.MultiheadAttention."""
    part, layout = f"(?P<block>{block})", "{block}:q {block}:k {block}:v"
    return [
        Axis(f"{part}.in_proj_weight", 0, layout),
        Axis(f"{part}.in_proj_weight", 1, stream),
        Axis(f"{part}.in_proj_bias", 0, layout),
        *linear(f"{part}.out_proj", "{block}:o", stream),
    ]


def family(*axes: Iterable[Axis], **options: object) -> Family:
    return Family(tuple(a for group in axes for a in group), **options)  # type: ignore[arg-type]
