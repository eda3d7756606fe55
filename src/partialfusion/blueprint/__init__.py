"""The blueprint of a model: channel spaces and axis bindings, found by running its graph on labels."""

from collections.abc import Mapping

import torch
from torch import nn

from ..core.inputs import Inputs
from . import rules
from .collect import collect
from .compare import Operation, difference, digest, operations
from .norms import NormLayer
from .program import Program, export
from .registry import NoRuleError, RuleError
from .run import run
from .spaces import AxisBinding, Blueprint, Kind, Norm, NormBinding, Role, Space


def trace_labels(model: nn.Module, inputs: Inputs, norms: Mapping[str, NormLayer] | None = None) -> Blueprint:
    """The blueprint as the labels give it, before any check on numbers.

    Args:
        model: the model.
        inputs: example inputs.
        norms: its norms across channels, where these are known.
    """
    return labelled(export(model, inputs, norms))


def labelled(program: Program) -> Blueprint:
    """The blueprint of a model that is exported already, before any check on numbers."""
    with torch.device("cpu"):
        return collect(run(program))


__all__ = [
    "AxisBinding",
    "Blueprint",
    "Kind",
    "NoRuleError",
    "Norm",
    "NormBinding",
    "NormLayer",
    "Operation",
    "Program",
    "Role",
    "RuleError",
    "Space",
    "difference",
    "digest",
    "export",
    "labelled",
    "operations",
    "rules",
    "trace_labels",
]
