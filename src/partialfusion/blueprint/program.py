"""A model as a graph of ATen operations, by torch.export."""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.modules import at_rest, canonical_names, first_line, named_tensors, shapes_of, to_device_of
from ..errors import TraceError


@dataclass(frozen=True)
class Program:
    """The graph, and what its placeholders stand for.

    Attributes:
        graph: nodes in the order of execution, with shapes in their metadata.
        names: placeholder → canonical name of a parameter or buffer.
        constants: placeholder → tensor that the code itself holds.
        tensors: canonical name → the model's parameter or buffer.
        used: canonical names of those that the graph uses.
    """

    graph: torch.fx.Graph
    names: dict[str, str]
    constants: dict[str, Tensor]
    tensors: dict[str, Tensor]
    used: frozenset[str]


def export(model: nn.Module, inputs: tuple[Any, ...]) -> Program:
    """Export a model in evaluation mode; its modes and weights stay as they are."""
    with at_rest(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model(*to_device_of(model, inputs))
        except Exception as error:
            raise TraceError(
                f"{type(model).__name__} does not run on the example inputs of shapes {shapes_of(inputs)}: "
                f"{first_line(error)}. "
                "Pass inputs (on the command line --input) as its forward takes them: a tensor, or a tuple of tensors."
            ) from error
        try:
            with redirect_stderr(io.StringIO()):
                exported = torch.export.export(model, to_device_of(model, inputs), strict=False)
        except Exception as error:
            raise TraceError(
                f"torch.export cannot trace {type(model).__name__}: {first_line(error)}. Its forward must not branch "
                "on the values of tensors or leave PyTorch (.item(), .numpy(), Python loops over data); move such "
                "parts out of forward, or fuse the submodule that does the work."
            ) from error
    signature = exported.graph_signature
    canonical = canonical_names(model)
    tensors = named_tensors(model)
    names, constants = {}, {}
    for spec in signature.input_specs:
        placeholder, target = spec.arg.name, spec.target
        if target is None:
            continue
        if target in canonical:
            names[placeholder] = canonical[target]
        elif target in exported.constants and isinstance(exported.constants[target], Tensor):
            constants[placeholder] = exported.constants[target]
    used = {names[n.name] for n in exported.graph.nodes if n.op == "placeholder" and n.name in names and n.users}
    return Program(exported.graph, names, constants, tensors, frozenset(used))
