"""The experiments: each is a list of cells and the report on their results."""

from __future__ import annotations

from collections.abc import Sequence

from partialfusion.errors import OptionError

from . import (
    aggregation,
    budget,
    capacity,
    cluster_simple_visualization,
    comp_support,
    fixed_layers,
    git_rebasin,
    images,
    lambda_comparison,
    language,
    main_result,
    masses,
    memory,
    mix,
    mlp_similarity,
    params,
    pruning,
    random_widen,
    resnet_widths,
    retrain_results,
    site,
    split_norms,
    transformers,
    vgg_similarity,
    vit_cifar10,
    wallclock1,
    zipitcomparison,
)
from .experiment import Experiment, Report
from .settings import Scale

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        main_result.EXPERIMENT,
        comp_support.EXPERIMENT,
        aggregation.SPLIT_DATA,
        aggregation.SAME_DATA_MNIST,
        retrain_results.EXPERIMENT,
        random_widen.EXPERIMENT,
        capacity.EXPERIMENT,
        zipitcomparison.EXPERIMENT,
        git_rebasin.EXPERIMENT,
        images.EXPERIMENT,
        cluster_simple_visualization.EXPERIMENT,
        mlp_similarity.FULL,
        mlp_similarity.SUMMARY,
        mlp_similarity.HISTOGRAMS,
        params.BOUNDS,
        params.EXAMPLE,
        wallclock1.EXPERIMENT,
        memory.EXPERIMENT,
        aggregation.SAME_DATA,
        resnet_widths.EXPERIMENT,
        pruning.EXPERIMENT,
        fixed_layers.FIX_SAME_DATA,
        fixed_layers.FIXED_ALL,
        aggregation.RESNET_FUSION,
        aggregation.RESNET_FUSION_BAD,
        lambda_comparison.EXPERIMENT,
        split_norms.EXPERIMENT,
        masses.EXPERIMENT,
        vgg_similarity.FULL,
        vgg_similarity.SUMMARY,
        vgg_similarity.HISTOGRAMS,
        budget.EXPERIMENT,
        mix.EXPERIMENT,
        site.EXPERIMENT,
        transformers.EXPERIMENT,
        vit_cifar10.EXPERIMENT,
        language.EXPERIMENT,
    )
}

__all__ = ["EXPERIMENTS", "Experiment", "Report", "Scale", "chosen"]


def chosen(names: Sequence[str]) -> list[Experiment]:
    """The experiments with these names; all of them where there are none."""
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise OptionError(f"there is no experiment {unknown[0]!r}: choose among {', '.join(EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in names] if names else list(EXPERIMENTS.values())
