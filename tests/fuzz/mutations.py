"""How a valid file is changed: bytes, JSON with its digest made anew, YAML, members of archives. All by a seed."""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open

from partialfusion.io.header import DIGEST, RECORD, _hash
from partialfusion.kernels.record import squeezed

Mutation = Callable[[bytes, random.Random], bytes]

NUMBERS = (0, 1, -1, 7, 255, 2**31, 2**32 + 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, 1e-320, float("nan"))
VALUES = (None, True, False, "", "x", "é\ud800", "../x", "a" * 2000, [], {}, [[]], [None], {"a": None}, *NUMBERS)
DEEP = 100_000  # nested lists or mappings, far beyond what a recursive parser survives
BOMB = 1 << 24  # zeros that compress to almost nothing; small enough that none of a thousand cases takes long
PNG = b"\x89PNG\r\n\x1a\n"  # what such a file begins with
INTEGERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def bytes_anywhere(content: bytes, rng: random.Random) -> bytes:
    """One to four small changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(_BYTES)(content, rng)
    return content


def _span(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(content) + 1)
    return start, min(len(content), start + rng.choice((1, 2, 4, 8, 64, 1024)))


def _flip(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return b"\0"
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]


def _integer(content: bytes, rng: random.Random) -> bytes:
    start, width = rng.randrange(len(content) + 1), rng.choice((1, 2, 4, 8))
    value = (rng.choice(INTEGERS) & (2 ** (8 * width) - 1)).to_bytes(width, rng.choice(("little", "big")))
    return content[:start] + value + content[start + width :]


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _drop(content: bytes, rng: random.Random) -> bytes:
    start, end = _span(content, rng)
    return content[:start] + content[end:]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    start, end = _span(content, rng)
    return content[:end] + content[start:end] * rng.choice((1, 3, 50)) + content[end:]


def _noise(content: bytes, rng: random.Random) -> bytes:
    start, end = _span(content, rng)
    return content[:start] + rng.randbytes(end - start) + content[end:]


def _zero(content: bytes, rng: random.Random) -> bytes:
    start, end = _span(content, rng)
    return content[:start] + bytes(end - start) + content[end:]


_BYTES: tuple[Mutation, ...] = (_flip, _flip, _integer, _cut, _drop, _repeat, _noise, _zero)


# JSON


def changed_tree(value: Any, rng: random.Random) -> Any:
    """A JSON value with one to three of its nodes replaced, removed, renamed, repeated or moved."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return copy.deepcopy(rng.choice(VALUES))
        holder, name = rng.choice(places)
        kind = rng.random()
        if kind < 0.5:
            holder[name] = copy.deepcopy(rng.choice(VALUES))
        elif kind < 0.65:
            del holder[name]
        elif kind < 0.8:
            other, where = rng.choice(places)
            holder[name] = copy.deepcopy(other[where]) if where in _names(other) else None
        elif kind < 0.9 and isinstance(holder, dict):
            holder[rng.choice(("x", "", "weights", "__class__", f"{name}x"))] = holder.pop(name)
        elif isinstance(holder, list):
            holder += holder[:1] * rng.choice((1, 2, 40))
        elif isinstance(holder[name], (int, float)) and not isinstance(holder[name], bool):
            holder[name] = holder[name] * rng.choice((-1, 2, 10**6, 1.5)) + rng.choice((0, 1, -1))
    return value


def _names(holder: Any) -> Any:
    return holder.keys() if isinstance(holder, dict) else range(len(holder))


def _places(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        for name in list(_names(value)):
            yield value, name
            yield from _places(value[name])


def deep(rng: random.Random) -> str:
    """JSON or YAML that is nested beyond any sense."""
    return rng.choice(("[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "- " * DEEP))


def json_file(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.02:
        return deep(rng).encode()
    return json.dumps(changed_tree(json.loads(content), rng)).encode()


def json_lines(content: bytes, rng: random.Random) -> bytes:
    """One line changed as JSON, or lines in another order."""
    lines = content.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    if rng.random() < 0.2:
        rng.shuffle(lines)
        return b"".join(lines[: rng.randrange(len(lines) + 1)] + lines[at:])
    lines[at] = json_file(lines[at], rng) + rng.choice((b"\n", b"\n", b"", b"\n\n"))
    return b"".join(lines)


# Stored fusions: the header of safetensors, and the record in it with its digest made anew


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the numbers of a safetensors file."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def joined(header: Any, numbers: bytes) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "little") + text + numbers


def safetensors_header(content: bytes, rng: random.Random) -> bytes:
    header, numbers = split(content)
    return joined(deep(rng) if rng.random() < 0.02 else changed_tree(header, rng), numbers)


def signed(content: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The file with another record and the right digest of it."""
    header, numbers = split(content)
    record = change(json.loads(header["__metadata__"][RECORD]))
    text = record if isinstance(record, str) else json.dumps(record)
    header["__metadata__"] |= {RECORD: text, DIGEST: _hash(text)}
    return joined(header, numbers)


def record(content: bytes, rng: random.Random) -> bytes:
    return signed(content, lambda found: deep(rng) if rng.random() < 0.02 else changed_tree(found, rng))


def layout(content: bytes, rng: random.Random) -> bytes:
    """The packed part of a record that says how tensors are stored."""
    return signed(content, lambda found: {**found, "layout": _repacked(found["layout"], json_file, rng)})


def arrays(content: bytes, rng: random.Random) -> bytes:
    """The packed part of a record that holds the plan's numbers."""

    def change(found: dict[str, Any]) -> dict[str, Any]:
        found["plan"]["arrays"] = _repacked(found["plan"]["arrays"], bytes_anywhere, rng)
        if rng.random() < 0.3:
            found["plan"]["spaces"] = changed_tree(found["plan"]["spaces"], rng)
        return found

    return signed(content, change)


def _repacked(text: str, change: Mutation, rng: random.Random) -> str:
    import base64

    kind = rng.random()
    if kind < 0.03:
        return squeezed(bytes(BOMB))
    if kind < 0.05:
        return squeezed(b"[" + b"[]," * (BOMB // 12) + b"[]]")
    if kind < 0.1:
        return changed_text(text, rng)
    return squeezed(change(zlib.decompress(base64.b85decode(text)), rng))


def changed_text(text: str, rng: random.Random) -> str:
    return bytes_anywhere(text.encode(), rng).decode("latin-1")


# YAML

SNIPPETS = (
    "- x",
    "seed: 1e400",
    "alpha: {a: .nan}",
    "mix: [.inf, 1]",
    "input: 1,99999999999999999999",
    "input: 1,3:float99",
    "input: [1, 3]",
    "method: {name: cluster, solver: [1]}",
    "method: {name: zip, runs: 99999999999999999999999}",
    "<<: {seed: 3}",
    "<<: [1, 2]",
    "? {a: b}\n: c",
    "!!python/object/apply:os.system ['true']",
    "data: /dev/zero",
    "output: /dev/full",
    "batch: 0x7fffffffffffffffffff",
    "batch: 1_000",
    "seed: -1",
    "seed: !!int 3",
    "budget: {dense: 1e999}",
    "evaluate: a:b",
    "result: 99999999999999999999999999",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "a: &a [*a]",
    "&x models: *x",
)


def yaml_text(content: bytes, rng: random.Random) -> bytes:
    """Lines moved, removed, exchanged for others; merges that double; nesting beyond any sense."""
    if rng.random() < 0.02:
        return content + b"data: " + deep(rng).encode()
    if rng.random() < 0.02:
        return content + laughs(rng.choice((10, 30, 60)))
    lines = content.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        kind = rng.random()
        if kind < 0.5:
            lines[at] = rng.choice(SNIPPETS)
        elif kind < 0.7:
            key = lines[at].partition(":")[0]
            lines[at] = f"{key}: {json.dumps(rng.choice(VALUES))}"
        elif kind < 0.85:
            del lines[at]
            lines = lines or [""]
        else:
            lines.insert(at, rng.choice(lines))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def laughs(levels: int) -> bytes:
    """Mappings that merge the one before twice: two to the power of `levels` keys."""
    lines = ["a0: &a0 {seed: 1, batch: 2}"]
    lines += [f"a{k}: &a{k} {{<<: [*a{k - 1}, *a{k - 1}]}}" for k in range(1, levels)]
    return "\n".join([*lines, f"<<: *a{levels - 1}", ""]).encode()


# Archives

WAYS = (zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)


def zip_members(content: bytes, rng: random.Random) -> bytes:
    """A zip archive with one member changed, or packed in another way, and the right checksums."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    how = rng.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)
    )
    at = rng.randrange(len(members))
    name, data = members[at]
    kind = rng.random()
    if kind < 0.7:
        members[at] = name, bytes_anywhere(data, rng)
    elif kind < 0.75:
        members[at], how = (name, data + bytes(BOMB)), zipfile.ZIP_DEFLATED
    elif kind < 0.85:
        members[at] = rng.choice(("x", "../x", "/x", f"{name}.npy", "é" * 100)), data
    elif kind < 0.95:
        del members[at]
    else:
        members += members[:1]
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", how) as archive:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, data in members:
                archive.writestr(name, data)
    return written.getvalue()


def gzip_content(content: bytes, rng: random.Random) -> bytes:
    """What is packed changed, and packed again."""
    raw = gzip.decompress(content)
    if rng.random() < 0.05:
        return gzip.compress(raw + bytes(4 * BOMB), 1, mtime=0)
    return gzip.compress(bytes_anywhere(raw, rng), 1, mtime=0)


def png_chunks(content: bytes, rng: random.Random) -> bytes:
    """One chunk of a PNG changed, repeated, renamed or removed, or other pixels in it, with the right checksums."""
    chunks, at = [], len(PNG)
    while at < len(content):
        end = at + 8 + int.from_bytes(content[at : at + 4], "big")
        chunks.append((content[at + 4 : at + 8], content[at + 8 : end]))
        at = end + 4
    at = rng.randrange(len(chunks))
    kind, data = chunks[at]
    way = rng.random()
    if kind == b"IDAT" and way < 0.7:
        raw = bytes(4 * BOMB) if way < 0.1 else bytes_anywhere(zlib.decompress(data), rng)
        chunks[at] = kind, zlib.compress(raw, 1)
    elif way < 0.7:
        chunks[at] = kind, bytes_anywhere(data, rng)
    elif way < 0.8:
        chunks[at] = rng.choice((b"IHDR", b"PLTE", b"tRNS", b"zTXt", b"iCCP", b"acTL", b"fdAT", b"\0\0\0\0")), data
    elif way < 0.9:
        chunks.insert(rng.randrange(len(chunks) + 1), chunks[at])
    else:
        del chunks[at]
    packed = (len(data).to_bytes(4, "big") + kind + data + _crc(kind + data) for kind, data in chunks)
    return PNG + b"".join(packed)


def _crc(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big")


def mutations_of(path: Path) -> dict[str, Mutation]:
    """The mutations of a kind of file; all but those of `RESIGNED` leave its digests as they are."""
    own: dict[str, dict[str, Mutation]] = {
        ".safetensors": {"header": safetensors_header},
        ".yaml": {"yaml": yaml_text},
        ".json": {"json": json_file},
        ".jsonl": {"lines": json_lines},
        ".npz": {"zip": zip_members},
        ".gz": {"gzip": gzip_content},
        ".png": {"png": png_chunks},
    }
    found = dict(own.get(path.suffix, {}))
    if path.suffix == ".pt" and zipfile.is_zipfile(path):
        found["zip"] = zip_members
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            if RECORD in (file.metadata() or {}):
                found |= {"record": record, "layout": layout, "arrays": arrays}
    return {"bytes": bytes_anywhere, **found}


RESIGNED = ("record", "layout", "arrays", "shards")
