"""Combine trained neural networks: the dial between averaging weights and ensembling."""

from .api import fuse, prune, refit, trace
from .blueprint import AxisBinding, Blueprint, Space
from .blueprint.registry import rule as register_rule
from .budget import Budget
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
from .pruning import Cluster, Magnitude, Zip
from .runtime.blocks import block_report, dense_state, from_blocks, to_blocks
from .runtime.export import export_onnx
from .runtime.finetune import freeze_zeros
from .runtime.storage import inspect, load, load_plan, save
from .surgery.widen import widen_net2net, widen_random

__version__ = "0.1.0"

__all__ = [
    "AxisBinding",
    "Blueprint",
    "Budget",
    "CheckpointError",
    "Cluster",
    "DataError",
    "Fusion",
    "FusionError",
    "KernelPair",
    "Magnitude",
    "MismatchError",
    "OptionError",
    "Plan",
    "Reduction",
    "Space",
    "Summary",
    "TraceError",
    "VerificationError",
    "Zip",
    "block_report",
    "dense_state",
    "export_onnx",
    "freeze_zeros",
    "from_blocks",
    "fuse",
    "inspect",
    "load",
    "load_plan",
    "prune",
    "refit",
    "register_rule",
    "save",
    "to_blocks",
    "trace",
    "widen_net2net",
    "widen_random",
]
