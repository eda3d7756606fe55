"""What is attacked: small valid files of every kind that the library reads, and what reads them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.cli.recipes import read_recipe
from partialfusion.io.checkpoints import load_into, load_state, save_state
from partialfusion.io.datafiles import load_batches, load_labelled
from partialfusion.io.pretrained import FORMAT, RECORD, WEIGHTS
from partialfusion.io.storage import inspect, load, load_dense, load_plan, save
from partialfusion.kernels.record import to_record
from partialfusion_study.cell import Record, config, key
from partialfusion_study.data import folder as folders
from partialfusion_study.data import formats, text
from partialfusion_study.data.images import tensors
from partialfusion_study.errors import StudyError
from partialfusion_study.store import Store
from study.sample_cells import Square

from . import directories
from .target import Target, fingerprint

X = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)


def mlp(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), nn.GELU(), nn.Linear(width, 2))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


class Stream(nn.Module):
    """A residual stream whose directions may be rotated."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 4), nn.Linear(4, 2)
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)
        self.norm, self.last_norm = nn.LayerNorm(4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return self.leave(self.last_norm(x + self.down(F.gelu(self.up(self.norm(x))))))


def pair(make: Callable[[], nn.Module]) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [make().eval(), make().eval()]


@cache
def models() -> list[nn.Module]:
    return pair(mlp)


@cache
def normed_models() -> list[nn.Module]:
    return pair(normed)


@cache
def streams() -> list[nn.Module]:
    return pair(Stream)


@cache
def blueprint() -> pf.Blueprint:
    return pf.trace(models()[-1], X)


def _noise(samples: int) -> Tensor:
    return torch.randn(samples, 3, generator=torch.Generator().manual_seed(0))


def _loaded(folder: Path, file: str, into: nn.Module) -> str:
    return fingerprint(load(folder / file, into=into).state_dict())


def _stored(folder: Path, file: str) -> list[Any]:
    found = inspect(folder / file)
    return [str(found), found.payload, found.packings.keys(), repr(found.norms), repr(found.integers)]


def _restored(folder: Path, file: str, sources: list[nn.Module]) -> str:
    return fingerprint(pf.restore(folder / file, sources, X).model.state_dict())


def _into(folder: Path, file: str) -> str:
    model = mlp()
    load_into(model, folder / file)
    return fingerprint(model.state_dict())


def _batches(folder: Path, file: str) -> int:
    return len(load_batches(folder / file, 2, like=X))


def _labelled(folder: Path, file: str) -> int:
    return len(load_labelled(folder / file, 2, like=X))


def _frontier(folder: Path, labelled: str, data: str | None = None) -> list[Any]:
    """What `partialfusion frontier` makes of files for --evaluate and --data."""
    found = pf.frontier(
        models(),
        X,
        evaluate=load_labelled(folder / labelled, 2, like=X),
        data=None if data is None else load_batches(folder / data, 2, like=X),
        alphas=(0.0, 0.5),
        blueprint=blueprint(),
    )
    found.to_csv(folder / "frontier.csv")
    found.save_html(folder / "frontier.html")
    return [str(found), found.to_dict()]


def _recipe(folder: Path) -> str:
    with chdir(folder):
        return repr(read_recipe(Path("recipe.yaml")))


CELLS = [Square(number, "nowhere") for number in range(3)]


def _store(folder: Path) -> bool:
    """Whether the results of a store are those that were put into it; where it leaves some out, that is a refusal."""
    store = Store(folder)
    found = {cell: store[cell] for cell in CELLS if cell in store}
    right = all(results == {"square": cell.number**2} for cell, results in found.items())
    if right and len(found) < len(CELLS):
        raise StudyError("some results do not count")
    return right


def _images(folder: Path, name: Any) -> str:
    return fingerprint(tensors(folders.read(name, folder)))


def _sheets(folder: Path) -> str:
    return _images(folder / "sheets", "cifar10")


def _text(folder: Path) -> str:
    found = text.split(text.files(folder / "texts/prose", ".txt"), "the text")
    return fingerprint({"train": found.train, "test": found.test})


def _directory(folder: Path) -> str:
    return fingerprint(pf.from_pretrained(folder, into=mlp()).state_dict())


def _targets() -> list[Target]:
    found = [
        Target("load fusion", "fusion.safetensors", lambda f: _loaded(f, "fusion.safetensors", mlp()), True),
        Target("load views", "views.safetensors", lambda f: _loaded(f, "views.safetensors", normed()), True),
        Target("load pruned", "pruned.safetensors", lambda f: _loaded(f, "pruned.safetensors", mlp()), True),
        Target("inspect fusion", "fusion.safetensors", lambda f: _stored(f, "fusion.safetensors"), True),
        Target("inspect views", "views.safetensors", lambda f: _stored(f, "views.safetensors"), True),
        Target(
            "load_plan", "pruned.safetensors", lambda f: to_record(load_plan(f / "pruned.safetensors")), guarded=True
        ),
        Target("load_dense", "views.safetensors", lambda f: fingerprint(load_dense(f / "views.safetensors")), True),
        Target("restore", "fusion.safetensors", lambda f: _restored(f, "fusion.safetensors", models()), True),
        Target(
            "restore views", "views.safetensors", lambda f: _restored(f, "views.safetensors", normed_models()), True
        ),
        Target("load rotated", "rotated.safetensors", lambda f: _loaded(f, "rotated.safetensors", Stream()), True),
        Target("inspect rotated", "rotated.safetensors", lambda f: _stored(f, "rotated.safetensors"), True),
        Target(
            "restore rotated", "rotated.safetensors", lambda f: _restored(f, "rotated.safetensors", streams()), True
        ),
        Target("load_state safetensors", "state.safetensors", lambda f: len(load_state(f / "state.safetensors"))),
        Target("recipe", "recipe.yaml", _recipe),
        Target("study store", "Square.jsonl", _store, guarded=True),
        Target("from_pretrained record", RECORD, _directory),
        Target("from_pretrained weights", WEIGHTS, _directory, True),
        Target("mnist pixels", f"{formats.TRAIN_IMAGES}.gz", lambda f: _images(f, "mnist")),
        Target("mnist labels", formats.TRAIN_LABELS, lambda f: _images(f, "mnist")),
        Target("cifar10 archive", formats.ARCHIVE, lambda f: _images(f, "cifar10")),
        Target("cifar10 sheet", f"sheets/package/{formats.TEST_SHEET}", _sheets),
        Target("cifar10 labels", f"sheets/package/{formats.TEST_SHEET_LABELS}", _sheets),
        Target("text folder", "texts/prose/a.txt", _text),
    ]
    for file in ("state.safetensors", "state.pt", "legacy.pt"):
        found.append(Target(f"load_into {file}", file, lambda f, file=file: _into(f, file)))
    for file in ("x.npy", "x.npz", "packed.npz", "x.pt", "x.safetensors"):
        found.append(Target(f"data {file}", file, lambda f, file=file: _batches(f, file)))
    for file in ("v.npz", "v.pt", "v.safetensors"):
        found.append(Target(f"labelled {file}", file, lambda f, file=file: _labelled(f, file)))
    found.append(Target("frontier labelled", "v.npz", lambda f: _frontier(f, "v.npz")))
    found.append(Target("frontier data", "x.npz", lambda f: _frontier(f, "v.pt", "x.npz")))
    return [*found, *directories.TARGETS]


TARGETS = _targets()

RECIPE = """\
factory: nets:small
models:
  - &first {factory: nets:large, checkpoint: state.safetensors}
  - {<<: *first, checkpoint: state.pt}
input: 1,3
method: {name: cluster, effort: 1}
alpha: {"layer*": 0.8, "*": 0.2}
mix: [0.4, 0.6]
data: x.npy
batch: 16
refit: 1e-3
seed: 5
check: true
dtype: float16
output: out.safetensors
"""


def write(folder: Path) -> None:
    """Write all valid files."""
    fused = pf.fuse(models(), X, alpha=0.5)
    save(fused, folder / "fusion.safetensors")
    save(fused, folder / WEIGHTS)
    save(pf.fuse(normed_models(), X, alpha=0.5), folder / "views.safetensors")
    save(pf.fuse(streams(), X, alpha=0.5, similarity="rotation"), folder / "rotated.safetensors")
    save(pf.prune(models()[0], X, keep=0.5, method="interpolate", data=[_noise(64)]), folder / "pruned.safetensors")
    for name in ("state.safetensors", "state.pt"):
        save_state(models()[0], folder / name)
    torch.save(models()[0].state_dict(), folder / "legacy.pt", _use_new_zipfile_serialization=False)
    x, labels = torch.arange(15.0).reshape(5, 3), torch.arange(5) % 2
    np.save(folder / "x.npy", x.numpy())
    np.savez(folder / "x.npz", x=x.numpy())
    np.savez_compressed(folder / "packed.npz", x=x.numpy())
    np.savez(folder / "v.npz", x=x.numpy(), labels=labels.numpy())
    torch.save(x, folder / "x.pt")
    torch.save({"x": x, "labels": labels}, folder / "v.pt")
    from safetensors.torch import save_file

    save_file({"x": x}, folder / "x.safetensors")
    save_file({"x": x, "labels": labels}, folder / "v.safetensors")
    (folder / "recipe.yaml").write_text(RECIPE)
    record = {"format": FORMAT, "model": "Sequential", "partialfusion": pf.__version__, "weights": WEIGHTS}
    (folder / RECORD).write_text(json.dumps(record))
    store = Store(folder)
    for cell in CELLS:
        store.put(Record("Square", key(cell), config(cell), {"square": cell.number**2}, 0.1, {"cpu": "a"}, "today"))
    _write_images(folder)
    _write_text(folder)
    directories.write(folder)


def _write_images(folder: Path) -> None:
    """Two images of each part of MNIST, partly packed, and one image in each file of CIFAR-10, in two forms."""
    pixels = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + bytes(2 * 28 * 28)
    labels = bytes([0, 0, 8, 1]) + (2).to_bytes(4, "big") + bytes([3, 7])
    for name in (formats.TRAIN_IMAGES, formats.TEST_IMAGES):
        (folder / f"{name}.gz").write_bytes(gzip.compress(pixels, mtime=0))
    for name in (formats.TRAIN_LABELS, formats.TEST_LABELS):
        (folder / name).write_bytes(labels)
    with tarfile.open(folder / formats.ARCHIVE, "w:gz") as archive:
        for number, name in enumerate(formats.BINARY_FILES):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = formats.ROW
            archive.addfile(member, io.BytesIO(bytes([number]) + bytes(formats.ROW - 1)))
    sheets = folder / "sheets/package"
    sheets.mkdir(parents=True)
    for name in (*formats.TRAIN_SHEETS, formats.TEST_SHEET):
        formats.pillow().fromarray(np.arange(3072, dtype=np.uint8).reshape(1, 1024, 3)).save(sheets / name)
    (sheets / formats.TRAIN_SHEET_LABELS).write_text("[0, 1, 2, 3, 4]")
    (sheets / formats.TEST_SHEET_LABELS).write_text("[5]")


def _write_text(folder: Path) -> None:
    """A few files of text, in one domain."""
    texts = folder / "texts/prose"
    (texts / "more").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "more/c.txt"):
        (texts / name).write_text(f"this is {name}\n" * 20)
