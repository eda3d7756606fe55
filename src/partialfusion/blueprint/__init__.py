"""The blueprint of a model: channel spaces and axis bindings, found by running its graph on labels."""

from typing import Any

from torch import nn

from . import rules
from .collect import collect
from .program import (
    as_inputs,
    canonical_names,
    evaluation_mode,
    export,
    named_tensors,
    run,
    to_device_of,
)
from .spaces import AxisBinding, Blueprint, Kind, Norm, Role, Space
from .tracer import Tracer


def trace_labels(model: nn.Module, inputs: tuple[Any, ...]) -> Blueprint:
    """The blueprint as the labels give it, before any check on numbers."""
    return collect(Tracer(export(model, inputs)).run())


__all__ = [
    "AxisBinding",
    "Blueprint",
    "Kind",
    "Norm",
    "Role",
    "Space",
    "as_inputs",
    "canonical_names",
    "evaluation_mode",
    "export",
    "named_tensors",
    "rules",
    "run",
    "to_device_of",
    "trace_labels",
]
