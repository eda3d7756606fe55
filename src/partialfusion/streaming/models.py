"""Models whose numbers stay in their files, for all that works on traced models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..core.blocks import Part
from ..core.cluster import Tasks
from ..core.modules import named_tensors
from ..features import TracedModel
from ..fusing.conform import same_constants
from ..fusing.pipeline import Pipeline
from ..fusing.sources import Sources
from ..surgery import apply
from .files import TensorFiles

if TYPE_CHECKING:
    from ..fusing.options import Recipe
    from ..fusing.result import Fusion
    from ..kernels import Plan


@dataclass(frozen=True)
class StreamedModel(TracedModel):
    """A traced model on the meta device: shapes are known, and numbers are read when they are asked for.

    Attributes:
        files: where the numbers are.
    """

    kept: ClassVar[int] = 2**28

    files: TensorFiles

    def number(self, name: str, part: Part | None = None) -> Tensor:
        """A parameter, or a part of it, in at least single precision, read from its file."""
        tensor = self.files.read(name, part)
        return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class StreamedSources(Sources):
    """Sources whose numbers are in files.

    Args:
        sources: the sources, of models on the meta device.
        files: where the numbers of each are.
        tasks: where spaces are matched.
    """

    def __init__(self, sources: Sources, files: Sequence[TensorFiles], tasks: Tasks) -> None:
        self.__dict__.update(sources.__dict__)
        self.files, self.tasks = tuple(files), tasks

    @property
    def device(self) -> str:
        """Where models are that are loaded from files."""
        return "cpu"

    @cached_property
    def traced(self) -> tuple[TracedModel, ...]:
        """The models with the places of their parameters."""
        found = zip(self.models, self.blueprints, self.files, strict=True)
        return tuple(StreamedModel(b, named_tensors(m), f) for m, b, f in found)

    def require_numbers(self) -> None:
        """They are in the files."""


class StreamedPipeline(Pipeline):
    """The pipeline on models on the meta device whose numbers are in files."""

    def reading(self, files: Sequence[TensorFiles], tasks: Tasks) -> StreamedPipeline:
        """The same with the places of the numbers, and where spaces are matched; constant buffers must be the same."""
        for k, own in enumerate(files[:-1]):
            same_constants(own.read, files[-1].read, self.models[-1], self.sources.blueprint, k)
        self.sources = StreamedSources(self.sources, files, tasks)
        return self

    def planned(self, plan: Plan, recipe: Recipe) -> Fusion:
        """The result of a plan that is known already."""
        result = apply(self.models, self.sources.blueprints, plan, self.inputs)
        sizes = self._sizes(recipe)
        return self._finished(result, recipe, {s: sizes[s] for s in self.sources.names("elastic")}, exact=True)
