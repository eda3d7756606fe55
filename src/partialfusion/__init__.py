"""Combine trained neural networks: the dial between averaging weights and ensembling."""

from importlib import import_module
from typing import TYPE_CHECKING

from .core.version import __version__ as __version__
from .errors import (
    CheckpointError,
    ClusterError,
    DataError,
    FusionError,
    MismatchError,
    OptionError,
    ShortfallError,
    TraceError,
    VerificationError,
)

if TYPE_CHECKING:
    from . import nn as nn
    from . import solvers as solvers
    from .api import fuse, prune, refit, trace
    from .blocks.convert import block_report, dense_state, from_blocks, to_blocks
    from .blocks.freeze import freeze_zeros
    from .blueprint import AxisBinding, Blueprint, Space
    from .blueprint.registry import rule as register_rule
    from .fusing.budget import Budget
    from .fusing.methods import Cluster, Interpolate, Magnitude, Zip
    from .fusing.mixing import Mixing, MixPoint
    from .fusing.result import Fusion, Summary
    from .io.onnx import export_onnx
    from .io.pretrained import from_pretrained, save_pretrained
    from .io.storage import inspect, load, load_plan, save
    from .io.stored import restore
    from .kernels import KernelPair, Plan, Reduction
    from .streaming.fuse import FusedFiles, fuse_files
    from .surgery.widen import widen_net2net, widen_random
    from .tradeoff import Frontier, Point, frontier
else:
    # PyTorch takes seconds to import, and the help of the command line needs none of it: every name above is
    # looked up where it lives when it is first used. No module may bear one of these names.
    _HOMES = {
        "api": ("fuse", "prune", "refit", "trace"),
        "blocks.convert": ("block_report", "dense_state", "from_blocks", "to_blocks"),
        "blocks.freeze": ("freeze_zeros",),
        "blueprint": ("AxisBinding", "Blueprint", "Space"),
        "fusing.budget": ("Budget",),
        "fusing.mixing": ("MixPoint", "Mixing"),
        "fusing.methods": ("Cluster", "Interpolate", "Magnitude", "Zip"),
        "fusing.result": ("Fusion", "Summary"),
        "io.onnx": ("export_onnx",),
        "io.pretrained": ("from_pretrained", "save_pretrained"),
        "io.storage": ("inspect", "load", "load_plan", "save"),
        "io.stored": ("restore",),
        "kernels": ("KernelPair", "Plan", "Reduction"),
        "streaming.fuse": ("FusedFiles", "fuse_files"),
        "surgery.widen": ("widen_net2net", "widen_random"),
        "tradeoff": ("Frontier", "Point", "frontier"),
    }
    _PLACES = {name: (home, name) for home, names in _HOMES.items() for name in names}
    _PLACES["register_rule"] = "blueprint.registry", "rule"
    _PACKAGES = ("nn", "solvers")

    def __getattr__(name):
        if name in _PACKAGES:
            return import_module(f".{name}", __name__)
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home, attribute = _PLACES[name]
        globals()[name] = getattr(import_module(f".{home}", __name__), attribute)
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *_PLACES, *_PACKAGES})


__all__ = [
    "AxisBinding",
    "Blueprint",
    "Budget",
    "CheckpointError",
    "Cluster",
    "ClusterError",
    "DataError",
    "Frontier",
    "FusedFiles",
    "Fusion",
    "FusionError",
    "Interpolate",
    "KernelPair",
    "Magnitude",
    "MismatchError",
    "MixPoint",
    "Mixing",
    "OptionError",
    "Plan",
    "Point",
    "Reduction",
    "ShortfallError",
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
    "from_pretrained",
    "frontier",
    "fuse",
    "fuse_files",
    "inspect",
    "load",
    "load_plan",
    "prune",
    "refit",
    "register_rule",
    "restore",
    "save",
    "save_pretrained",
    "to_blocks",
    "trace",
    "widen_net2net",
    "widen_random",
]
