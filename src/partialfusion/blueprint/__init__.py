"""The blueprint of a model: channel spaces and axis bindings, found by running its graph on labels."""

from typing import Any

import torch
from torch import nn

from . import rules
from .collect import collect
from .program import export
from .registry import NoRuleError, RuleError
from .run import run
from .spaces import AxisBinding, Blueprint, Kind, Norm, Role, Space


def trace_labels(model: nn.Module, inputs: tuple[Any, ...]) -> Blueprint:
    """The blueprint as the labels give it, before any check on numbers."""
    program = export(model, inputs)
    with torch.device("cpu"):
        return collect(run(program))


__all__ = [
    "AxisBinding",
    "Blueprint",
    "Kind",
    "NoRuleError",
    "Norm",
    "Role",
    "RuleError",
    "Space",
    "export",
    "rules",
    "trace_labels",
]
