"""What `fuse`, `prune` and `run` have in common: models, options and an output file, checked and carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..progress import Listener
from ..terminal import print_json
from .parse import example_inputs, parse_dtype
from .records import fusion_record, loading_lines

if TYPE_CHECKING:
    from torch import Tensor

    from ..fusion import Fusion


@dataclass(frozen=True)
class Model:
    """A model: what builds it, and the file of its weights."""

    factory: str
    checkpoint: Path


@dataclass(frozen=True)
class Unlabelled:
    """A file of inputs, and how many are a batch."""

    file: Path
    batch: int = 64


@dataclass(frozen=True)
class Job:
    """A fusion, or with one model a pruning.

    Attributes:
        models: the sources, in order.
        inputs: the shapes of the example inputs, as texts.
        options: keywords of `pf.fuse`, or of `pf.prune`.
        out: the file to write.
        data: unlabelled inputs.
        dtype: the type to store parameters in.
        seed: of everything random.
        prune: whether the one model is pruned.
    """

    models: tuple[Model, ...]
    inputs: tuple[str, ...]
    options: Mapping[str, Any]
    out: Path
    data: Unlabelled | None = None
    dtype: str | None = None
    seed: int = 0
    prune: bool = False

    @property
    def files(self) -> list[Path]:
        """What is read, and must not be overwritten."""
        return [*(m.checkpoint for m in self.models), *([self.data.file] if self.data else [])]


def carry_out(job: Job, tell: Listener) -> Fusion:
    """The result of a job, once it is written; what is wrong with the output shows before any work is done."""
    tell("starting PyTorch", 0.0)
    from .. import api
    from ..checkpoints import check_writable, load_model, save_fusion

    check_writable(job.out, keep=job.files)
    dtype = parse_dtype(job.dtype)
    inputs = example_inputs(job.inputs, job.seed)
    batches = load_data(job.data, inputs)
    tell("loading", 0.0)
    models = [load_model(m.factory, m.checkpoint, seed=job.seed) for m in job.models]
    options: dict[str, Any] = {**job.options, "data": batches, "seed": job.seed, "progress": tell}
    result = api.prune(models[0], inputs, **options) if job.prune else api.fuse(models, inputs, **options)
    tell("writing", 1.0)
    save_fusion(result, job.out, dtype=dtype)
    return result


def load_data(data: Unlabelled | None, inputs: tuple[Tensor, ...]) -> list[Any] | None:
    """Batches of the inputs in a file, or None without one."""
    if data is None:
        return None
    from ..datafiles import load_batches

    return load_batches(data.file, data.batch, like=inputs)


def show(result: Fusion, factory: str, out: Path, *, as_json: bool, quiet: bool) -> None:
    """Print what became of a job."""
    if as_json:
        print_json(fusion_record(result, out))
    elif not quiet:
        typer.echo(str(result.summary()))
        typer.echo(f"\nwrote {out}. Its widths are the result's; to load it in Python:\n")
        typer.echo(loading_lines(factory, out))
