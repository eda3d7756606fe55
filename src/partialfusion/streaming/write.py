"""Every tensor of the result by the one formula, one at a time, into shards that know nothing of each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.blocks import Part, taken
from ..core.modules import inside, named_tensors
from ..core.version import __version__
from ..errors import VerificationError
from ..fusing.result import Fusion
from ..io.digest import ShardDigest, digest
from ..io.files import replacing, write_tensors
from ..io.header import VIEWS, Source, Stored, to_metadata
from ..io.packing import Packing, plan_packings
from ..io.storage import integers_of, narrowed
from ..surgery import AppliedPlan
from ..surgery.apply import is_made_of_all, parameter
from ..surgery.views import share_out, view_layers, views_of
from .models import StreamedModel

PLAIN_SHARDS, OUR_SHARDS = "model", "model.partialfusion"


@dataclass(frozen=True, eq=False)
class Content:
    """What the tensors of a result hold; numbers are computed when they are asked for, from the files of the sources.

    It holds no large tensors, so it can be sent to workers that see the same files.

    Attributes:
        sources: the models.
        plan: the plan, with the layout of the result.
        targets: name → tensor of the result, on the meta device.
        packings: name → how it is stored.
        small: name → tensors that are known already: views of norms, buffers that no file holds.
        dtype: the precision for parameters that are wider.
    """

    sources: tuple[StreamedModel, ...]
    plan: AppliedPlan
    targets: Mapping[str, Tensor]
    packings: Mapping[str, Packing]
    small: Mapping[str, Tensor]
    dtype: torch.dtype | None

    @classmethod
    def of(cls, fusion: Fusion, sources: Sequence[StreamedModel], dtype: torch.dtype | None) -> Content:
        targets = named_tensors(fusion.model)
        small = _views(fusion, targets) | {n: b for n, b in sources[-1].files.buffers.items() if n in targets}
        small = {n: t for n, t in small.items() if not is_made_of_all(n, targets[n], fusion.blueprint)}
        packings = plan_packings(targets, blueprint=fusion.blueprint, layout=fusion.layout, plan=fusion.plan)
        whole = {n: replace(how, support=()) for n, how in packings.items() if how.size == math.prod(how.shape)}
        return cls(tuple(sources), fusion.plan, targets, {**packings, **whole}, small, dtype)

    def tensor(self, name: str, part: Part | None = None) -> Tensor:
        """The numbers of a tensor of the result, or of a part of it, in the type that it has there."""
        for known in (self.small, self._mixing_norms):
            if name in known:
                return taken(known[name], part)
        return self._formula(name, part)

    def _formula(self, name: str, part: Part | None = None) -> Tensor:
        target, last = self.targets[name], self.sources[-1]
        if not is_made_of_all(name, target, last.blueprint):
            return last.files.read(name, part)
        return parameter(name, self.sources, self.plan, tuple(target.shape), part).to(target.dtype)

    @cached_property
    def _mixing_norms(self) -> dict[str, Tensor]:
        """The norms that take the shares of the models, before tied last layers."""
        blueprint = self.sources[-1].blueprint
        layers = {path: blueprint.norm_layers[path] for path in set(blueprint.tied.values())}
        names = [inside(path, a) for path, layer in layers.items() for a in (layer.weight, layer.bias) if a is not None]
        found = {name: self._formula(name) for name in names}
        share_out(found, blueprint, self.plan, self.plan.layout)
        return found

    def stored(self, name: str) -> Iterator[Tensor]:
        """What is stored of a tensor, without its zero blocks and narrowed; of a large one a block of rows after the
        other."""
        packing = self.packings[name]
        blocks = packing.blocks()
        if blocks is None:
            tensor = self.tensor(name)
            yield self._checked(name, tensor, packing.pack(tensor))
            return
        for rows, place in blocks:
            tensor = self.tensor(name, (0, rows))
            yield self._checked(name, tensor, tensor[place])

    def _checked(self, name: str, tensor: Tensor, found: Tensor) -> Tensor:
        """What is stored of some numbers, which must hold all that are not zero."""
        if found.numel() < tensor.numel() and int(found.count_nonzero()) != int(tensor.count_nonzero()):
            raise VerificationError(f"{name} holds numbers between channels of different models; please report this")
        return narrowed(name, found, self._narrow(name))

    def _narrow(self, name: str) -> torch.dtype | None:
        return self.dtype if isinstance(self.targets[name], nn.Parameter) else None

    def form(self, name: str) -> Tensor:
        """A tensor on the meta device with the type and the shape of what is stored."""
        target, dtype = self.targets[name], self._narrow(name)
        narrower = dtype is not None and target.is_floating_point() and target.element_size() > dtype.itemsize
        return torch.empty(self.packings[name].stored_shape, dtype=dtype if narrower else target.dtype, device="meta")

    def shards(self, limit: int) -> list[list[str]]:
        """The names in each shard, in the order of the model; no shard is larger than the limit in bytes, unless it
        holds a single tensor."""
        found: list[list[str]] = [[]]
        size = 0
        for name in self.targets:
            if name in self.small:
                continue
            form = self.form(name)
            own = form.numel() * form.element_size()
            if found[-1] and size + own > limit:
                found.append([])
                size = 0
            found[-1].append(name)
            size += own
        return found

    def size(self, names: Iterable[str] | None = None) -> int:
        """The bytes of what is stored of some tensors, or of all."""
        forms = map(self.form, self.targets if names is None else names)
        return sum(form.numel() * form.element_size() for form in forms)


def write_shard(content: Content, names: Sequence[str], path: str) -> str:
    """Write a shard, completely or not at all; returns the hash of its tensors. A task that depends on no other."""
    seen = ShardDigest()

    def numbers(name: str) -> Iterator[Tensor]:
        return seen.passing(name, content.form(name), content.stored(name))

    with torch.no_grad(), replacing(Path(path)) as file:
        write_tensors(file, {name: content.form(name) for name in names}, {"format": "pt"}, numbers)
    note(Path(path)).write_text(seen.hex())
    return seen.hex()


def note(path: Path) -> Path:
    """The file beside a shard that says that it is finished, and the hash of its tensors."""
    return path.with_name(f"{path.name}.sha256")


def write_header(
    path: Path, fusion: Fusion, content: Content, sources: Sequence[Source], shards: Mapping[str, str]
) -> None:
    """Write the header with the plan, and the small tensors.

    Args:
        path: the file.
        fusion: the result, on the meta device.
        content: what its tensors hold.
        sources: class and hash of the models.
        shards: file → hash of the tensors in it; none while they are not written yet.
    """
    norms = {p: norm for p, norm in view_layers(fusion.model).items() if p in fusion.blueprint.norm_layers}
    dtype = content.dtype
    stored = Stored(
        model=type(fusion.model).__name__,
        recipe=asdict(fusion.recipe),
        sources=tuple(sources),
        plan=fusion.plan,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        version=__version__,
        torch=str(torch.__version__),
        packings=content.packings,
        integers=integers_of(fusion.model),
        norms=norms,
        payload=digest(content.small.items()),
        shards=shards,
    )
    with replacing(path) as file:
        write_tensors(file, content.small, to_metadata(stored))


def shard_names(count: int, described: bool) -> list[str]:
    """The names of the shards: those of transformers where it can load them, others where it must not."""
    stem = PLAIN_SHARDS if described else OUR_SHARDS
    if count == 1 and described:
        return [f"{stem}.safetensors"]
    return [f"{stem}-{k + 1:05d}-of-{count:05d}.safetensors" for k in range(count)]


def _views(fusion: Fusion, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The views and shares of every norm with views, in its type."""
    found = {}
    for path in fusion.blueprint.normed:
        if inside(path, VIEWS[0]) in targets:
            for name, values in zip(VIEWS, views_of(path, fusion.blueprint, fusion.plan, fusion.layout), strict=True):
                found[inside(path, name)] = torch.from_numpy(values).to(targets[inside(path, name)].dtype)
    return found
