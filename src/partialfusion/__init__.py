"""Combine trained neural networks: the dial between averaging weights and ensembling."""

from .api import fuse, trace
from .blueprint import AxisBinding, Blueprint, Space
from .blueprint.registry import rule as register_rule
from .errors import (
    CheckpointError,
    DataError,
    FusionError,
    MismatchError,
    OptionError,
    TraceError,
    VerificationError,
)
from .fusion import Fusion, Summary
from .kernels import KernelPair, Plan, Reduction

__version__ = "0.1.0"

__all__ = [
    "AxisBinding",
    "Blueprint",
    "CheckpointError",
    "DataError",
    "Fusion",
    "FusionError",
    "KernelPair",
    "MismatchError",
    "OptionError",
    "Plan",
    "Reduction",
    "Space",
    "Summary",
    "TraceError",
    "VerificationError",
    "fuse",
    "register_rule",
    "trace",
]
