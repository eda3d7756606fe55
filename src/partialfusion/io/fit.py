"""Whether the tensors of a file fit a model, and how they differ where they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core.modules import named_tensors
from ..core.text import shorten
from ..errors import CheckpointError
from .files import StrPath


@dataclass(frozen=True)
class Differences:
    """How the tensors of a file differ from those of a model. False where they do not; prints as one line.

    Attributes:
        missing: tensors that only the model has.
        extra: tensors that only the file has.
        shapes: tensors whose shapes in the file and in the model do not fit.
    """

    missing: list[str]
    extra: list[str]
    shapes: list[str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.shapes)

    def __str__(self) -> str:
        parts = ("it lacks", self.missing), ("it also has", self.extra), ("shapes differ", self.shapes)
        return "; ".join(f"{what}: {shorten(names)}" for what, names in parts if names)

    @property
    def only_shapes(self) -> bool:
        return bool(self.shapes) and not self.missing and not self.extra


def differences(
    file: Mapping[str, object], model: Mapping[str, object], *, fits: Callable[[str], bool] | None = None
) -> Differences:
    """Compare what a file holds with what a model holds.

    Args:
        file: name → tensor, or anything with a shape, in the file.
        model: name → tensor in the model.
        fits: whether the shapes of a name that both have fit; without it they must be equal.
    """
    unequal = [n for n in file if n in model and not (fits(n) if fits else shape(file[n]) == shape(model[n]))]
    return Differences(
        missing=[f"{n} {shape(value)}" for n, value in model.items() if n not in file],
        extra=[f"{n} {shape(value)}" for n, value in file.items() if n not in model],
        shapes=[f"{n} {shape(file[n])} in the file and {shape(model[n])} in the model" for n in unequal],
    )


def shape(value: object) -> str:
    """The shape of a tensor, or the type of a value that has none, for messages."""
    found = getattr(value, "shape", None)
    return type(value).__name__ if found is None else str(tuple(found))


def check_memory(model: nn.Module, path: StrPath) -> None:
    """A model whose tensors hold no memory yet cannot be filled."""
    for name, tensor in named_tensors(model).items():
        if tensor.is_meta or is_lazy(tensor):
            raise CheckpointError(
                f"{path} cannot be loaded into {type(model).__name__}: {name} has no memory yet (meta device or lazy "
                "module); build the model on a device, with all its shapes known"
            )


def check_kind(
    path: StrPath, name: str, found: Tensor, target: Tensor, *, remedy: str, same_integers: bool = False
) -> None:
    """Precision may differ; integers, quantised and complex numbers cannot stand in for real ones.

    Args:
        path: the file, for the message.
        name: the name of the tensor.
        found: the tensor in the file.
        target: the tensor in the model.
        remedy: what to do instead, for the message.
        same_integers: also refuse integers of another type than the model's.
    """
    if found.dtype == target.dtype:
        return
    same_kind = _kind(found) == _kind(target)
    if not same_kind or (same_integers and not found.is_floating_point()):
        raise CheckpointError(
            f"{path} does not fit the model: {name} {shape(found)} is {found.dtype} in the file and {target.dtype} in "
            f"the model; {remedy}"
        )


def _kind(tensor: Tensor) -> tuple[bool, bool, bool]:
    return tensor.is_floating_point(), tensor.is_complex(), tensor.is_quantized
