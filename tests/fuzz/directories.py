"""What is attacked in folders: checkpoints of Hugging Face and fusions in shards, and a fusion that is unfinished."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from partialfusion import trace
from partialfusion.blueprint import Blueprint
from partialfusion.io.header import Source
from partialfusion.io.hf import INDEX
from partialfusion.io.pretrained import RECORD, WEIGHTS, build_directory, from_pretrained, load_directory
from partialfusion.io.storage import inspect, load_dense
from partialfusion.kernels.record import to_record
from partialfusion.streaming.files import TensorFiles
from partialfusion.streaming.fuse import fuse_files
from partialfusion.streaming.skeleton import Skeleton
from partialfusion.streaming.unfinished import JOB, unfinished
from partialfusion.streaming.write import note
from partialfusion_study.errors import StudyError
from streaming import tiny

from .target import Target, fingerprint

KIND = "llama"
HF, FUSED, TARGET = "hf", "fused", "half"
UNFINISHED = f"{TARGET}.unfinished"
SHARD = "model-00002-of-00004.safetensors"
OUR_SHARD = "model.partialfusion-00002-of-00007.safetensors"


class StoppedError(Exception):
    """In the middle of writing."""


def write(folder: Path) -> None:
    """Write two checkpoints in shards, their fusion in shards, and one that was stopped half-way."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    sources = [folder / HF, folder / "other"]
    for seed, path in enumerate(sources):
        tiny.model(KIND, seed).save_pretrained(path, max_shard_size="4KB")
    options: dict[str, Any] = {"alpha": 0.5, "shard_size": 4000, "check": False}
    fuse_files(sources, folder / FUSED, **options)

    def stop(label: str, done: float) -> None:
        if label.startswith("writing shard 5"):
            raise StoppedError

    try:
        fuse_files(sources, folder / TARGET, progress=stop, **options)
    except StoppedError:
        return
    raise AssertionError("it was not stopped")


@cache
def job(folder: Path) -> tuple[str, tuple[Source, ...], list[Blueprint]]:
    """What a call that goes on knows before it looks into the folder: its hash, the models and their blueprints."""
    sha256 = json.loads((folder / UNFINISHED / JOB).read_text())["sha256"]
    models = [tiny.model(KIND, seed) for seed in range(2)]
    blueprint = trace(models[-1], models[-1].dummy_inputs, check=False)
    return sha256, inspect(folder / UNFINISHED / WEIGHTS).sources, [blueprint] * 2


def _loaded(folder: Path) -> str:
    return fingerprint(load_directory(tiny.model(KIND, 0), folder / HF).state_dict())


def _streamed(folder: Path) -> str:
    skeleton = Skeleton.of(lambda: tiny.model.__wrapped__(KIND, 0))
    return TensorFiles.of(folder / HF, skeleton).surveyed(sorted(skeleton.state_names))


def _built(folder: Path) -> str:
    return str({n: tuple(p.shape) for n, p in build_directory(folder / HF, {}).named_parameters()})


def _fused(folder: Path) -> str:
    return fingerprint(from_pretrained(folder / FUSED, into=tiny.model(KIND, 0)).state_dict())


def _from_config(folder: Path) -> str:
    return fingerprint(from_pretrained(folder / FUSED).state_dict())


def _header(folder: Path) -> list[Any]:
    found = inspect(folder / FUSED / WEIGHTS)
    return [str(found), found.payload, found.packings.keys(), dict(found.shards)]


def _resumed(folder: Path) -> Any:
    """What is kept of an unfinished fusion; where some of it is not, that is a refusal."""
    sha256, sources, blueprints = job(folder)
    with unfinished(folder / TARGET) as held:
        held.begin(sha256)
        plan = held.plan(100_000, sources, blueprints)
        shards = [f"model.partialfusion-{k + 1:05d}-of-00007.safetensors" for k in range(4)]
        found = {name: held.finished(name) for name in shards}
    if plan is None or None in found.values():
        raise StudyError("it begins anew, or writes a shard again")
    return to_record(plan), found


TARGETS = [
    Target("load_directory index", f"{HF}/{INDEX}", _loaded),
    Target("load_directory shard", f"{HF}/{SHARD}", _loaded),
    Target("stream index", f"{HF}/{INDEX}", _streamed),
    Target("stream shard", f"{HF}/{SHARD}", _streamed),
    Target("build config", f"{HF}/config.json", _built),
    Target("fused header", f"{FUSED}/{WEIGHTS}", _fused, True),
    Target("fused shard", f"{FUSED}/{OUR_SHARD}", _fused, True),
    Target("fused shard by config", f"{FUSED}/{OUR_SHARD}", _from_config, True),
    Target("fused record", f"{FUSED}/{RECORD}", _fused),
    Target("fused config", f"{FUSED}/config.json", _from_config),
    Target("fused generation", f"{FUSED}/generation_config.json", _from_config),
    Target("inspect shards", f"{FUSED}/{WEIGHTS}", _header, True),
    Target("load_dense shards", f"{FUSED}/{OUR_SHARD}", lambda f: fingerprint(load_dense(f / FUSED / WEIGHTS)), True),
    Target("resume job", f"{UNFINISHED}/{JOB}", _resumed, True),
    Target("resume plan", f"{UNFINISHED}/{WEIGHTS}", _resumed, True),
    Target("resume shard", f"{UNFINISHED}/{OUR_SHARD}", _resumed, True),
    Target("resume note", f"{UNFINISHED}/{note(Path(OUR_SHARD)).name}", _resumed, True),
]
