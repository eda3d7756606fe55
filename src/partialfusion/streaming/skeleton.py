"""A model without its numbers: the modules that a config describes, on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.inputs import Inputs, Output
from ..core.meta import remembering
from ..core.modules import canonical_names, named_tensors
from ..errors import OptionError

EDGE = 64  # of an image, where the config names no size


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A model on the meta device, and the numbers that its code computes when it is built.

    Attributes:
        model: the model, in evaluation mode; its tensors have types and shapes only.
        computed: name → buffer, as the code made it.
    """

    model: nn.Module
    computed: Mapping[str, Tensor]

    @classmethod
    def of(cls, build: Callable[[], nn.Module]) -> Skeleton:
        """The skeleton of what a function builds; no memory is used for parameters while it does."""
        with _parameters_on_meta():
            model = build().eval()
        computed = {name: buffer.detach() for name, buffer in model.named_buffers()}
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    # Code may choose channels by whole numbers; those that files hold may be others there.
                    known = name in module._non_persistent_buffers_set and not buffer.is_floating_point()
                    module._buffers[name] = remembering(buffer) if known else buffer.to("meta")
        return cls(model, computed)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Name → buffer that no file holds, such as the frequencies of rotary embeddings."""
        stored = self.state_names
        return {name: buffer for name, buffer in self.computed.items() if name not in stored}

    @property
    def state_names(self) -> set[str]:
        """The first names of the tensors in the model's state dict."""
        first = canonical_names(self.model)
        return {first[name] for name in self.model.state_dict() if name in first}

    def with_types(self, types: Mapping[str, torch.dtype]) -> None:
        """Give floating-point tensors the types that they have in a file, by their first names."""
        tensors = named_tensors(self.model)
        changed: dict[int, Tensor] = {}
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and types.get(name, tensor.dtype) != tensor.dtype:
                cast = tensor.detach().to(types[name])
                is_trained = isinstance(tensor, nn.Parameter)
                changed[id(tensor)] = nn.Parameter(cast, requires_grad=tensor.requires_grad) if is_trained else cast
        for module in self.model.modules():
            for held in (module._parameters, module._buffers):
                held.update({n: changed[id(t)] for n, t in held.items() if id(t) in changed})  # type: ignore[misc]


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Every parameter goes to the meta device when a module takes it: before it is initialised, so that its memory is
    never touched. Buffers stay, since code computes them when the model is built."""
    usual = nn.Module.register_parameter

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        usual(self, name, param)

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = usual  # type: ignore[method-assign]


def example_inputs(model: Any, output: Output | None) -> Inputs:
    """Inputs of a model of transformers that reads text or images, from what its class and its config say."""
    name = getattr(model, "main_input_name", "")
    if name == "input_ids":
        with torch.device("cpu"):
            return Inputs.of(dict(model.dummy_inputs), output)
    if name == "pixel_values":
        edge = getattr(model.config, "image_size", None) or EDGE
        height, width = edge if isinstance(edge, (tuple, list)) else (edge, edge)
        shape = 2, getattr(model.config, "num_channels", 3), height, width
        return Inputs.of({name: torch.randn(shape, generator=torch.Generator().manual_seed(0), device="cpu")}, output)
    raise OptionError(
        f"{type(model).__name__} reads {name or 'something unknown'}: pass example inputs (on the command line --input)"
    )
