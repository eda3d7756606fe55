"""Combine trained neural networks: the dial between averaging weights and ensembling."""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import (
    CheckpointError,
    DataError,
    FusionError,
    MismatchError,
    OptionError,
    TraceError,
    VerificationError,
)

if TYPE_CHECKING:
    from .api import fuse, prune, refit, trace
    from .blueprint import AxisBinding, Blueprint, Space
    from .blueprint.registry import rule as register_rule
    from .budget import Budget
    from .fusion import Fusion, Summary
    from .kernels import KernelPair, Plan, Reduction
    from .mixing import Mixing, MixPoint
    from .pruning import Cluster, Magnitude, Zip
    from .runtime.blocks import block_report, dense_state, from_blocks, to_blocks
    from .runtime.export import export_onnx
    from .runtime.finetune import freeze_zeros
    from .runtime.storage import inspect, load, load_plan, save
    from .stored import restore
    from .surgery.widen import widen_net2net, widen_random
    from .tradeoff import Frontier, Point, frontier
else:
    # PyTorch takes seconds to import, and the help of the command line needs none of it: every name above is
    # looked up where it lives when it is first used. No module may bear one of these names.
    _HOMES = {
        "api": ("fuse", "prune", "refit", "trace"),
        "blueprint": ("AxisBinding", "Blueprint", "Space"),
        "budget": ("Budget",),
        "fusion": ("Fusion", "Summary"),
        "kernels": ("KernelPair", "Plan", "Reduction"),
        "mixing": ("MixPoint", "Mixing"),
        "pruning": ("Cluster", "Magnitude", "Zip"),
        "runtime.blocks": ("block_report", "dense_state", "from_blocks", "to_blocks"),
        "runtime.export": ("export_onnx",),
        "runtime.finetune": ("freeze_zeros",),
        "runtime.storage": ("inspect", "load", "load_plan", "save"),
        "stored": ("restore",),
        "surgery.widen": ("widen_net2net", "widen_random"),
        "tradeoff": ("Frontier", "Point", "frontier"),
    }
    _PLACES = {name: (home, name) for home, names in _HOMES.items() for name in names}
    _PLACES["register_rule"] = "blueprint.registry", "rule"

    def __getattr__(name):
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home, attribute = _PLACES[name]
        globals()[name] = getattr(import_module(f".{home}", __name__), attribute)
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *_PLACES})


__version__ = "0.1.0"

__all__ = [
    "AxisBinding",
    "Blueprint",
    "Budget",
    "CheckpointError",
    "Cluster",
    "DataError",
    "Frontier",
    "Fusion",
    "FusionError",
    "KernelPair",
    "Magnitude",
    "MismatchError",
    "MixPoint",
    "Mixing",
    "OptionError",
    "Plan",
    "Point",
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
    "frontier",
    "fuse",
    "inspect",
    "load",
    "load_plan",
    "prune",
    "refit",
    "register_rule",
    "restore",
    "save",
    "to_blocks",
    "trace",
    "widen_net2net",
    "widen_random",
]
