"""What `fuse`, `prune`, `run` and `bench` have in common: models and options, checked and run, and an output file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.progress import ProgressCallback
from .data import input_files, load_data, load_evaluate
from .output import show_fusion
from .parse import inputs_or_none, parse_dtype, parse_fractions, parse_mix, parse_output, parse_refit, parse_round_to
from .terminal import StopOnInterrupt, interrupted

if TYPE_CHECKING:
    from ..fusing.result import Fusion


@dataclass(frozen=True)
class Model:
    """A model: the factory that builds it, and the file with its weights; without a file it is newly initialised."""

    factory: str
    checkpoint: Path | None


@dataclass(frozen=True)
class Job:
    """A fusion, or with one model a pruning.

    Attributes:
        models: the sources, in order.
        inputs: shapes of the example inputs, as strings; none where the first samples of the data serve.
        options: keyword arguments of `pf.fuse`, or of `pf.prune`.
        out: the file to write, if any.
        data: a file of unlabelled inputs.
        batch: number of samples per batch of a file.
        budget: bounds on the result, by name.
        evaluate: a file of labelled data or the name of a function, which mix="auto" chooses by.
        dtype: the type to store parameters in.
        seed: random seed of everything that is drawn.
        prune: whether the one model is pruned.
        recipe: the file that the job was read from.
    """

    models: tuple[Model, ...]
    inputs: tuple[str, ...]
    options: Mapping[str, Any]
    out: Path | None = None
    data: Path | None = None
    batch: int = 64
    budget: Mapping[str, float | int] | None = None
    evaluate: str | None = None
    dtype: str | None = None
    seed: int = 0
    prune: bool = False
    recipe: Path | None = None

    @property
    def files(self) -> list[Path]:
        """The files that the job reads, which must not be overwritten."""
        own = [] if self.recipe is None else [self.recipe]
        factories = [m.factory for m in self.models]
        checkpoints = [m.checkpoint for m in self.models if m.checkpoint is not None]
        return [*own, *checkpoints, *input_files(factories, self.data, self.evaluate)]


def fuse_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `pf.fuse` from the options of a command, by the names of its parameters."""
    same = ("method", "features", "site", "similarity", "align", "masses", "norm", "zeros", "convention")
    return {
        "alpha": parse_fractions("--alpha", given["alpha"]),
        "round_to": parse_round_to(given["round_to"]),
        "mix": parse_mix(given["mix"], given["evaluate"]),
        "refit": parse_refit(given["refit"], given["ridge"]),
        "output": parse_output(given["output"]),
        **{name: given[name] for name in (*same, "check", "allow_shortfall", "device")},
    }


def run_job(job: Job, report: ProgressCallback) -> Fusion:
    """Run a job and write its result; problems with the output file are found before any work is done."""
    report("starting PyTorch", 0.0)
    from .. import api
    from ..fusing.budget import Budget
    from ..fusing.options import COUPLING
    from ..io.checkpoints import check_writable, load_model, save_fusion
    from ..io.factories import build

    # After Ctrl-C a search returns the best it has found, and that is then written.
    searches = job.prune or job.options.get("method", COUPLING[0]) not in COUPLING
    report_search = report.callback if searches and isinstance(report, StopOnInterrupt) else report
    if job.out is not None:
        check_writable(job.out, keep=job.files)
    dtype = parse_dtype(job.dtype)
    inputs = inputs_or_none(job.inputs, job.data, job.seed)
    batches = load_data(job.data, job.batch, inputs)
    evaluate = None if job.evaluate is None else load_evaluate(job.evaluate, job.batch, inputs)
    report("loading", 0.0)
    seed = job.seed
    models = [
        load_model(m.factory, m.checkpoint, seed=seed) if m.checkpoint else build(m.factory, seed=seed + k)
        for k, m in enumerate(job.models)
    ]
    options: dict[str, Any] = {**job.options, "data": batches, "seed": job.seed, "progress": report_search}
    options |= {} if job.budget is None else {"budget": Budget(**job.budget)}
    options |= {} if evaluate is None else {"evaluate": evaluate}
    result = api.prune(models[0], inputs, **options) if job.prune else api.fuse(models, inputs, **options)
    if job.out is not None:
        (report if result.plan.converged else report_search)("writing", 1.0)
        save_fusion(result, job.out, dtype=dtype)
    return result


def show(result: Fusion, job: Job, *, as_json: bool, quiet: bool) -> None:
    """Print the result of a job; where the user stopped its search, end with the exit code of an interrupt."""
    assert job.out is not None
    show_fusion(result, job.models[-1].factory, job.out, budget=job.budget, as_json=as_json, quiet=quiet)
    if result.recipe.pruning is not None and not result.plan.converged:
        interrupted(f"{job.out} holds the best result found so far")
