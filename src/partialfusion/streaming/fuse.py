"""Fusing checkpoint directories without ever holding a model in memory."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..blueprint import Blueprint
from ..core.alone import alone
from ..core.cluster import Here, Tasks, Threads, tasks
from ..core.compute import Device
from ..core.inputs import Inputs, Output
from ..core.literals import Align, Alpha, Convention, RoundTo
from ..core.modules import canonical_names
from ..core.progress import Amount, ProgressCallback, hearing, reporting
from ..core.scalars import check_flag
from ..core.version import __version__
from ..errors import OptionError
from ..fusing.options import COUPLING, Recipe, resolve
from ..fusing.prepare import traced
from ..fusing.result import Fusion, Summary
from ..fusing.validation import check_mix, check_models
from ..io.files import StrPath
from ..io.header import Source
from ..io.hf import CONFIG, INDEX, folder_of, read_json, write_json
from ..io.pretrained import (
    GENERATION,
    README,
    RECORD,
    WEIGHTS,
    build_directory,
    check_directory,
    write_pointer,
    write_record,
)
from ..surgery.config import OWN
from .files import TensorFiles
from .models import StreamedModel, StreamedPipeline
from .skeleton import Skeleton, example_inputs
from .stages import TRACING, Part, Stages
from .unfinished import Unfinished, check_space, unfinished
from .write import Content, shard_names, write_header, write_shard

log = logging.getLogger(__name__)

MOST_MATCHED = 2  # spaces at a time in this process: the cost of each takes as many numbers as it has pairs of channels
# What a tokenizer or a processor has beside a model, by the beginnings of the names.
COMPANIONS = (
    *("tokenizer", "special_tokens", "added_tokens", "vocab", "merges", "spiece", "sentencepiece", "chat_template"),
    *("preprocessor_config", "processor_config", "video_preprocessor_config", "image_processor"),
    *("spm", "source.spm", "target.spm", "bpe", "normalizer", "tekken"),
    *("entity_vocab", "emoji.json", "dict.txt", "byte_maps", "prophetnet.tokenizer"),
)
TEMPLATES = "additional_chat_templates"  # a folder of templates beside the first
UNTOLD = "_name_or_path", "transformers_version", "dtype", "torch_dtype"  # what changes no structure in a config


@dataclass(frozen=True, repr=False)
class FusedFiles:
    """A result that was written and never in memory.

    Attributes:
        directory: where it is; `from_pretrained` loads it.
        fusion: the plan, the recipe and the counts. Its model is on the meta device and has no numbers.
        described: whether the config describes the result, so that transformers loads it by itself.
        kept: how many shards an earlier run had finished.
    """

    directory: Path
    fusion: Fusion
    described: bool
    kept: int = 0

    def summary(self) -> Summary:
        """Channels fused and isolated per space, parameters, and convergence."""
        return self.fusion.summary()

    def __repr__(self) -> str:
        return f"FusedFiles({str(self.directory)!r}, {self.fusion!r})"


@alone
def fuse_files(
    directories: Sequence[StrPath],
    out: StrPath,
    example_inputs: Any = None,
    *,
    output: Output | None = None,
    alpha: Alpha | None = None,
    mix: float | Sequence[float] | None = None,
    method: str = "partial-ot",
    align: Align = "fixed-point",
    convention: Convention = "value",
    round_to: RoundTo = "auto",
    dtype: torch.dtype | None = None,
    shard_size: int = 10**9,
    cluster: str | None = None,
    device: Device | None = None,
    check: bool = True,
    allow_shortfall: bool = False,
    seed: int = 0,
    progress: bool | ProgressCallback | None = None,
) -> FusedFiles:
    """Fuse models of Hugging Face's that are never in memory whole: tensors are read from their files when they are
    needed, and the result is written shard by shard.

    The result is that of `fuse` with the same options and no data, bit for bit. A call that was killed goes on where it
    stopped when it is repeated: the plan and the shards that are finished are kept beside `out`, in a folder whose name
    ends in ".unfinished", and are verified by their hashes.

    Args:
        directories: two or more local directories with a config.json and safetensors, in one file or several. The last
            one is the reference: the result has its class, and at alpha=0 its widths.
        out: the directory to write; it is created, or replaced if it holds an earlier result. `from_pretrained` loads
            it, and where the config describes the result, as it does at alpha=0, so does that of transformers.
        example_inputs: inputs as for `fuse`. May be left out for models that read text or images.
        output: which entry of the model's output is the result, as for `fuse`.
        alpha: how many channels more than one model's: a number or a mapping, as for `fuse`.
        mix: the share of each model, as for `fuse`; it cannot be searched for.
        method: "partial-ot", "ot", "permutation" or "average", as for `fuse`. Channels are compared by weights.
        align: "fixed-point" or "greedy", as for `fuse`.
        convention: "value" or "mass", as for `fuse`.
        round_to: make every part of a space a multiple of so many channels, as for `fuse`.
        dtype: the precision for parameters that are wider. Parameters keep the types that they have in the files, and
            sums are in single precision.
        shard_size: the largest size of a file in bytes, unless a single tensor is larger.
        cluster: the address of a Dask scheduler, such as "tcp://host:8786", whose workers match spaces and write
            shards. They need the same version of this library and see the same folders.
        device: where to compute the heavy parts, the products that costs are made of, such as "cuda"; weights are moved
            there a piece at a time, and channels are assigned on the CPU. On a cluster, that of the workers.
        check: verify that the widened model traces to the same spaces. The check on numbers that `fuse` makes needs a
            model in memory and is left out; a warning and the summary say so.
        allow_shortfall: accept a result that falls short of what was asked for, as for `fuse`.
        seed: random seed of the check.
        progress: True or False, or a function of a label and the fraction done, as for `fuse`.
    """
    check, allow_shortfall = check_flag(check, "check"), check_flag(allow_shortfall, "allow_shortfall")
    if isinstance(directories, (str, bytes)) or not isinstance(directories, Sequence) or len(directories) < 2:
        raise OptionError("directories must be a list of two or more directories: pf.fuse_files(['a', 'b'], 'out')")
    if method not in COUPLING:
        raise OptionError(
            f"method={method!r} cannot be streamed: choose one of {', '.join(COUPLING)}, or load the models and call "
            "pf.fuse"
        )
    if not isinstance(shard_size, int) or shard_size < 1:
        raise OptionError(f"shard_size={shard_size!r} must be a number of bytes")
    recipe = resolve(
        method=method,
        features="weights",
        site="auto",
        similarity="permutation",
        align=align,
        norm="analytic",
        convention=convention,
        alpha=alpha,
        keep=None,
        mix=check_mix(mix, len(directories)),
        seed=seed,
        refit=False,
        round_to=round_to,
        has_data=False,
    )
    folders = [folder_of(path) for path in directories]
    target = Path(out).resolve()
    _check_out(target, folders)
    with ExitStack() as stack:
        report = stack.enter_context(reporting(progress))
        run = stack.enter_context(tasks(cluster, device))
        held = stack.enter_context(unfinished(target))
        job = _Job(folders, held, recipe, run, report, dtype, shard_size, check, allow_shortfall)
        return job.done(example_inputs, output)


@dataclass(frozen=True, eq=False)
class _Job:
    """One call: from directories to a directory."""

    folders: Sequence[Path]
    held: Unfinished
    recipe: Recipe
    tasks: Tasks
    report: ProgressCallback
    dtype: torch.dtype | None
    shard_size: int
    check: bool
    allow_shortfall: bool

    def done(self, given: Any, output: Output | None) -> FusedFiles:
        self.report("building the models without numbers", 0.0)
        skeletons = _skeletons(self.folders)
        files = []
        for folder, skeleton in zip(self.folders, skeletons, strict=True):
            files.append(TensorFiles.of(folder, skeleton))
            skeleton.with_types(files[-1].types)
        _same_types(files)
        models = [s.model for s in skeletons]
        check_models(models)
        inputs = example_inputs(models[-1], output) if given is None else Inputs.of(given, output)
        blueprint = self._traced(models[-1], inputs)
        stages = Stages.of(self.report, blueprint, self.recipe, files)
        digests = self._surveyed(models, files, stages.reading)
        sources = [Source(type(m).__name__, sha256) for m, sha256 in zip(models, digests, strict=True)]
        self.held.begin(self._key(digests, inputs))
        fusion, streamed = self._fused(models, files, blueprint, sources, inputs, stages.matching)
        content = Content.of(fusion, streamed, self.dtype)
        described = OWN not in vars(fusion.model)
        if not self.held.header.is_file():
            write_header(self.held.header, fusion, content, sources, {})
        shards, kept = self._shards(content, described, stages.writing)
        write_header(self.held.header, fusion, content, sources, shards)
        self._complete(fusion, content, described, list(shards))
        return FusedFiles(self.held.target, fusion, described, kept)

    def _traced(self, model: Any, inputs: Inputs) -> Blueprint:
        """The blueprint of the last model."""
        resizes, report = self.recipe.alpha != 0, Part(self.report, 0.0, TRACING)
        blueprint = traced(model, inputs, check=self.check, seed=self.recipe.seed, untie=resizes, progress=report)
        if self.check:
            log.warning("the check on numbers is left out, since it needs a whole model in memory")
        if blueprint.norms:
            raise OptionError(
                f"{type(model).__name__} has batch norms, whose statistics cannot be streamed: load the models and "
                "call pf.fuse"
            )
        return blueprint

    def _surveyed(self, models: Sequence[Any], files: Sequence[TensorFiles], report: ProgressCallback) -> list[str]:
        """The hashes of the sources; all numbers are looked at once."""
        known = [{n: t for n, t in m.state_dict().items() if n in canonical_names(m)} for m in models]
        sizes = [sum(t.nbytes for t in tensors.values()) for tensors in known]
        work = Amount(sum(sizes), lambda done: report("reading the models", done))
        work.tell()
        found = []
        with hearing(work):
            results = self.tasks.run(TensorFiles.surveyed, list(zip(files, map(list, known), strict=True)))
            for sha256, size in zip(results, sizes, strict=True):
                found.append(sha256)
                work.end(size)
        return found

    def _key(self, digests: Sequence[str], inputs: Inputs) -> str:
        """The hash of all that the result depends on."""
        told = {
            "recipe": asdict(self.recipe),
            "sources": list(digests),
            "configs": [_structure(folder) for folder in self.folders],
            "inputs": [inputs.shapes, str(inputs.output)],
            "dtype": str(self.dtype),
            "shard": self.shard_size,
            "check": self.check,
            "version": __version__,
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()

    def _fused(
        self,
        models: Sequence[Any],
        files: Sequence[TensorFiles],
        blueprint: Blueprint,
        known: Sequence[Source],
        inputs: Inputs,
        report: ProgressCallback,
    ) -> tuple[Fusion, list[StreamedModel]]:
        """The result on the meta device, by the plan of an earlier run if there is one."""
        made = StreamedPipeline(models, inputs, blueprint, None, report, self.check, self.allow_shortfall)
        matching = Threads(MOST_MATCHED) if isinstance(self.tasks, Here) else self.tasks
        pipeline = made.reading(files, matching)
        plan = self.held.plan(sum(f.size for f in files), known, pipeline.sources.blueprints)
        if plan is not None:
            log.info("the plan of an earlier run is used: %s", self.held.header)
            fusion = pipeline.planned(plan, self.recipe)
        else:
            report("matching", 0.0)
            fusion = pipeline.reduce(self.recipe, exact=True).fusion
        streamed = [source for source in pipeline.sources.traced if isinstance(source, StreamedModel)]
        return fusion, streamed

    def _shards(self, content: Content, described: bool, report: ProgressCallback) -> tuple[dict[str, str], int]:
        """File → hash of all shards, and how many an earlier run had finished."""
        parts = content.shards(self.shard_size)
        names = shard_names(len(parts), described)
        sizes = {name: content.size(part) for name, part in zip(names, parts, strict=True)}
        known: dict[str, str] = {}
        work = Amount(sum(sizes.values()), lambda done: report(f"writing shard {len(known) + 1} of {len(names)}", done))
        with hearing(work):
            for name in names:
                sha256 = self.held.finished(name)
                if sha256 is not None:
                    work.end(sizes[name])
                    known[name] = sha256
            left = [(name, part) for name, part in zip(names, parts, strict=True) if name not in known]
            check_space(self.held.folder, sum(sizes[name] for name, _ in left))
            shared = self.tasks.share(content)
            calls = [(shared, part, str(self.held.folder / name)) for name, part in left]
            kept = len(known)
            results = self.tasks.run(write_shard, calls)
            for name, _ in left:
                work.tell()
                sha256 = next(results)
                work.end(sizes[name])
                known[name] = sha256
        return {name: known[name] for name in names}, kept

    def _complete(self, fusion: Fusion, content: Content, described: bool, shards: Sequence[str]) -> None:
        """Write what goes with the weights, and put the directory in its place."""
        folder, model = self.held.folder, type(fusion.model).__name__
        config = read_json(self.folders[-1] / CONFIG)
        if self.dtype is not None:
            config["dtype"] = str(self.dtype).removeprefix("torch.")
        write_json(folder / CONFIG, config)
        extra = {CONFIG, WEIGHTS, RECORD, *shards}
        for item in sorted(self.folders[-1].iterdir()):
            if item.is_file() and (item.name == GENERATION or item.name.startswith(COMPANIONS)):
                shutil.copy2(item, folder / item.name)
                extra.add(item.name)
        for item in sorted((self.folders[-1] / TEMPLATES).glob("*.jinja")):
            if item.is_file():
                (folder / TEMPLATES).mkdir(exist_ok=True)
                shutil.copy2(item, folder / TEMPLATES / item.name)
                extra.add(TEMPLATES)
        if not described:
            write_pointer(folder)
            extra |= {INDEX, README}
        elif len(shards) > 1:
            parts = zip(shards, content.shards(self.shard_size), strict=True)
            places = {name: shard for shard, part in parts for name in part}
            write_json(folder / INDEX, {"metadata": {"total_size": content.size()}, "weight_map": places})
            extra.add(INDEX)
        write_record(folder, model, shards, page=not described)
        self.held.complete(extra)


def _skeletons(folders: Sequence[Path]) -> list[Skeleton]:
    """A model without numbers for each directory; directories of one structure share it."""
    found: dict[str, Skeleton] = {}
    made = []
    for folder in folders:
        key = _structure(folder)
        if key not in found:
            found[key] = Skeleton.of(lambda folder=folder: build_directory(folder, {}))  # type: ignore[misc]
        made.append(found[key])
    return made


def _same_types(files: Sequence[TensorFiles]) -> None:
    *others, last = files
    for other in others:
        for name, dtype in other.types.items():
            if last.types.get(name, dtype) != dtype:
                raise OptionError(
                    f"{name} is {dtype} in {other.folder} and {last.types[name]} in {last.folder}: convert one"
                )


def _structure(folder: Path) -> str:
    """What the config of a directory says of its model, without what says where it comes from."""
    config = read_json(folder / CONFIG)
    return json.dumps({k: v for k, v in config.items() if k not in UNTOLD}, sort_keys=True)


def _check_out(target: Path, folders: Sequence[Path]) -> None:
    for folder in folders:
        if target == folder.resolve():
            raise OptionError(f"{target} is an input and would be overwritten; choose another output directory")
    check_directory(target)
