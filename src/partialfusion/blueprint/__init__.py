"""The blueprint of a model: channel spaces and axis bindings, found by running its graph on labels."""

from typing import Any

import torch
from torch import nn

from . import rules
from .collect import collect
from .program import export
from .spaces import AxisBinding, Blueprint, Kind, Norm, Role, Space
from .tracer import Tracer


def trace_labels(model: nn.Module, inputs: tuple[Any, ...]) -> Blueprint:
    """The blueprint as the labels give it, before any check on numbers."""
    program = export(model, inputs)
    with torch.device("cpu"):
        return collect(Tracer(program).run())


__all__ = [
    "AxisBinding",
    "Blueprint",
    "Kind",
    "Norm",
    "Role",
    "Space",
    "export",
    "rules",
    "trace_labels",
]
