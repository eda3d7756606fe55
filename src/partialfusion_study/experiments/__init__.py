"""The experiments: one file each, all of them declared as grids of cells."""

from __future__ import annotations

from importlib import import_module

from partialfusion.errors import OptionError

from .experiment import Experiment, Told
from .settings import Scale

MODULES = (
    "main_result",
    "comp_support",
    "split_data",
    "same_data_mnist",
    "retrain_results",
    "random_widen",
    "capacity",
    "zipitcomparison",
    "cluster_simple_visualization",
    "mlp_full",
    "mlp_summary",
    "mlp_histograms",
    "params_t",
    "params_p",
    "wallclock1",
    "same_data",
    "pruning_vgg",
    "fix_same_data",
    "fixed_all",
    "resnet_fusion",
    "resnet_fusion_bad",
    "lambda_comparison",
    "vgg_full",
    "vgg_summary",
    "vgg_histograms",
    "budget",
    "mix",
    "site",
)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (import_module(f"{__name__}.{module}").EXPERIMENT for module in MODULES)
}

__all__ = ["EXPERIMENTS", "Experiment", "Scale", "Told", "chosen"]


def chosen(names: tuple[str, ...] | list[str]) -> list[Experiment]:
    """The experiments of these names; all of them where none is named."""
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise OptionError(f"there is no experiment {unknown[0]!r}: choose among {', '.join(EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in names] if names else list(EXPERIMENTS.values())
