"""What `fuse`, `prune` and `run` have in common: models, options and an output file, checked and carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..core.progress import ProgressCallback
from .measures import files_read, load_measure
from .parse import example_inputs, parse_dtype
from .records import fusion_record, loading_lines
from .terminal import Stopping, interrupted, print_json

if TYPE_CHECKING:
    from torch import Tensor

    from ..fusing.result import Fusion


@dataclass(frozen=True)
class Model:
    """A model: what builds it, and the file of its weights."""

    factory: str
    checkpoint: Path


@dataclass(frozen=True)
class Job:
    """A fusion, or with one model a pruning.

    Attributes:
        models: the sources, in order.
        inputs: the shapes of the example inputs, as texts.
        options: keywords of `pf.fuse`, or of `pf.prune`.
        out: the file to write.
        data: a file of unlabelled inputs.
        batch: how many samples of a file are a batch.
        budget: bounds on the result, by name.
        evaluate: labelled data or a function, what mix="auto" goes by.
        dtype: the type to store parameters in.
        seed: of everything random.
        prune: whether the one model is pruned.
    """

    models: tuple[Model, ...]
    inputs: tuple[str, ...]
    options: Mapping[str, Any]
    out: Path
    data: Path | None = None
    batch: int = 64
    budget: Mapping[str, float | int] | None = None
    evaluate: str | None = None
    dtype: str | None = None
    seed: int = 0
    prune: bool = False

    @property
    def files(self) -> list[Path]:
        """What is read, and must not be overwritten."""
        return [*(m.checkpoint for m in self.models), *files_read(self.data, self.evaluate)]


def carry_out(job: Job, tell: ProgressCallback) -> Fusion:
    """The result of a job, once it is written; what is wrong with the output shows before any work is done."""
    tell("starting PyTorch", 0.0)
    from .. import api
    from ..fusing.budget import Budget
    from ..fusing.options import COUPLING
    from ..io.checkpoints import check_writable, load_model, save_fusion

    searches = job.prune or job.options.get("method", COUPLING[0]) not in COUPLING
    telling = tell.plain if searches and isinstance(tell, Stopping) else tell  # a search ends by itself with Ctrl-C
    check_writable(job.out, keep=job.files)
    dtype = parse_dtype(job.dtype)
    inputs = example_inputs(job.inputs, job.seed)
    batches = load_data(job.data, job.batch, inputs)
    measure = None if job.evaluate is None else load_measure(job.evaluate, job.batch, inputs)
    tell("loading", 0.0)
    models = [load_model(m.factory, m.checkpoint, seed=job.seed) for m in job.models]
    options: dict[str, Any] = {**job.options, "data": batches, "seed": job.seed, "progress": telling}
    options |= {} if job.budget is None else {"budget": Budget(**job.budget)}
    options |= {} if measure is None else {"evaluate": measure}
    result = api.prune(models[0], inputs, **options) if job.prune else api.fuse(models, inputs, **options)
    (tell if result.plan.converged else telling)("writing", 1.0)  # what a search had found by then is written
    save_fusion(result, job.out, dtype=dtype)
    return result


def load_data(data: Path | None, batch: int, inputs: tuple[Tensor, ...]) -> list[Any] | None:
    """Batches of the inputs in a file, or None without one."""
    if data is None:
        return None
    from ..io.datafiles import load_batches

    return load_batches(data, batch, like=inputs)


def show(result: Fusion, job: Job, *, as_json: bool, quiet: bool) -> None:
    """Print what became of a job; one whose search the user stopped has a result, and the code of an interrupt."""
    show_fusion(result, job.models[-1].factory, job.out, budget=job.budget, as_json=as_json, quiet=quiet)
    if result.recipe.pruning is not None and not result.plan.converged:
        interrupted(f"{job.out} is the best that was found until then")


def show_fusion(
    result: Fusion,
    factory: str,
    out: Path,
    *,
    budget: Mapping[str, float | int] | None = None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print a result that was written."""
    if as_json:
        print_json(fusion_record(result, out, budget))
    elif not quiet:
        typer.echo(str(result.summary()))
        if result.mixing is not None:
            typer.echo(f"\n{result.mixing}")
        if budget is not None:
            typer.echo(f"budget: {', '.join(f'{name} {bound:g}' for name, bound in budget.items())}")
        typer.echo(f"\nwrote {out}. Its widths are the result's; to load it in Python:\n")
        typer.echo(loading_lines(factory, out))
