"""A model as a graph of ATen operations, by torch.export."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.inputs import Inputs
from ..core.modules import at_rest, canonical_names, first_line, forget, named_tensors, without_cache
from ..errors import TraceError
from .canonical import canonical
from .norms import NormLayer, find_norms

# In PyTorch 2.6 `export` itself takes operations apart, for which the trace has no rules; this one leaves them whole.
_export = getattr(torch.export, "export_for_training", torch.export.export)


@dataclass(frozen=True)
class Program:
    """The graph, and what its placeholders stand for.

    Attributes:
        graph: nodes in the order of execution, with shapes in their metadata.
        names: placeholder → canonical name of a parameter or buffer.
        constants: placeholder → tensor that the code itself holds.
        tensors: canonical name → the model's parameter or buffer.
        used: canonical names of those that the graph uses.
        norms: path → norm across channels, each one operation of the graph.
    """

    graph: torch.fx.Graph
    names: dict[str, str]
    constants: dict[str, Tensor]
    tensors: dict[str, Tensor]
    used: frozenset[str]
    norms: Mapping[str, NormLayer]


def export(model: nn.Module, inputs: Inputs, norms: Mapping[str, NormLayer] | None = None) -> Program:
    """Export a model in evaluation mode; all of it stays as it is.

    Args:
        model: the model.
        inputs: example inputs.
        norms: its norms across channels where these are known; otherwise they are found by what they compute.
    """
    with at_rest(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        returned: list[Any] = []
        twin = _copied(model, norms or {})  # what the code keeps between two calls is kept there
        try:
            if norms is None:
                norms = find_norms(twin, lambda m: returned.append(inputs.call(m)))
                twin = canonical(twin, norms)
            else:
                returned.append(inputs.call(twin))
        except Exception as error:
            raise TraceError(
                f"{type(model).__name__} does not run on the example inputs of shapes {inputs.shapes}: "
                f"{first_line(error)}. "
                "Pass inputs (on the command line --input) as its forward takes them: a tensor, a tuple of tensors, or "
                "a mapping of keyword inputs."
            ) from error
        inputs.results(returned[0])
        copied = inputs.on_device_of(model)
        try:
            with redirect_stderr(io.StringIO()), without_cache(twin), _without_stack_traces():
                results = _Results(forget(twin), inputs)
                exported = _export(results, copied.args, dict(copied.kwargs), strict=False)
        except Exception as error:
            raise TraceError(
                f"torch.export cannot trace {type(model).__name__}: {first_line(error)}. Its forward must not branch "
                "on the values of tensors or leave PyTorch (.item(), .numpy(), Python loops over data); move such "
                "parts out of forward, or fuse the submodule that does the work."
            ) from error
    signature = exported.graph_signature
    first_names = canonical_names(model)
    tensors = named_tensors(model)
    names, constants = {}, {}
    for spec in signature.input_specs:
        placeholder, target = spec.arg.name, spec.target
        if target is None:
            continue
        own = target.removeprefix(_Results.PREFIX)
        if own in first_names:
            names[placeholder] = first_names[own]
        elif target in exported.constants and isinstance(exported.constants[target], Tensor):
            constants[placeholder] = exported.constants[target]
    used = {names[n.name] for n in exported.graph.nodes if n.op == "placeholder" and n.name in names and n.users}
    return Program(exported.graph, names, constants, tensors, frozenset(used), norms)


def _copied(model: nn.Module, norms: Mapping[str, NormLayer]) -> nn.Module:
    try:
        return canonical(model, norms)
    except Exception as error:
        raise TraceError(
            f"{type(model).__name__} cannot be copied by copy.deepcopy: {first_line(error)}. The result is a copy of "
            "the last model; take what cannot be copied out of it."
        ) from error


@contextmanager
def _without_stack_traces() -> Iterator[None]:
    """Nodes of a graph that do not record which line made them: nobody asks, and it takes a tenth of the time."""
    settings = torch.fx.config
    if not hasattr(settings, "do_not_emit_stack_traces"):  # PyTorch 2.6
        yield
        return
    before = settings.do_not_emit_stack_traces
    settings.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        settings.do_not_emit_stack_traces = before


class _Results(nn.Module):
    """A model that returns its results and nothing else, so that no other part of its output is one of the graph's."""

    PREFIX = "model."

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model, self.inputs, self.training = model, inputs, False

    def forward(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        return self.inputs.results(self.model(*args, **kwargs))
