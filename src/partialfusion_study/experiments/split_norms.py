"""What matching and norm statistics cost two ResNet-18 that know different classes, fused to the size of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from ..cell import Cell
from ..cells import Variances
from ..methods import ACTIVATIONS, PARTIAL_OT, RECALIBRATED, MethodConfig
from ..report import Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .runs import measured
from .settings import Scale, alphas, setting, split_resnet_pairs

IMAGES = 500  # on which variances are measured
ISOLATED = 0.4  # alpha at which some channels stay isolated
FREE, MEASURED = "weights, data-free", "weights, recalibrated"
METHODS: dict[str, MethodConfig] = {
    FREE: PARTIAL_OT,
    MEASURED: RECALIBRATED,
    "activations, data-free": replace(ACTIVATIONS, norm="analytic"),
    "activations, recalibrated": ACTIVATIONS,
}


def make_grid(scale: Scale) -> Grid:
    """At the usual scale only the size of one model, and the size at which the variances are looked at."""
    sizes = (0.0, ISOLATED, 1.0) if scale == "usual" else alphas(scale)
    return Grid(split_resnet_pairs(scale), METHODS, sizes, (EQUAL,), scale)


def variances(scale: Scale) -> list[Variances]:
    """Of the fusions by weights, where some channels stay isolated."""
    images = 100 if scale == "quick" else IMAGES
    return [Variances(pair, PARTIAL_OT, ISOLATED, images) for pair in split_resnet_pairs(scale)]


def norms(scale: Scale, results: Results) -> list[tuple[dict[str, Any], ...]]:
    """Norm by norm, and there pair by pair: the ratios of the variances."""
    return [*zip(*(results(cell)["norms"] for cell in variances(scale)), strict=True)]


def cells(scale: Scale) -> list[Cell]:
    return [*make_grid(scale).cells(), *variances(scale)]


def report(scale: Scale, results: Results) -> Report:
    grid = make_grid(scale)
    table = grid.table(results, "rows", "Matched and normalised in four ways, accuracy (%) at equal shares")
    low, high = (grid.mean(results, label, 0.0) for label in (FREE, list(METHODS)[-1]))
    finding = (
        f"At the size of one model, matching by weights without data has {low:.1f} %, by activations with measured "
        f"statistics {high:.1f} %."
    )
    text = (
        f"{setting(scale, grid.pairs)} Channels are matched by weights, or by activations on 1,000 images; the "
        "statistics of batch norms follow the paper's data-free rule, or are measured on the same images. The last "
        f"table looks at the variances that the rule gives at α = {ISOLATED:g}, matched by weights, relative to those "
        f"of the network's own activations on {variances(scale)[0].images} images. *As fused* all norms "
        "follow the rule; *corrected* every norm before is right."
    )
    ratios = measured(results, lambda r: _ratios(norms(scale, r)))
    return Report(finding, text, (table, grid.reference(results), ratios))


def _ratios(norms: Sequence[Sequence[dict[str, Any]]]) -> Table:
    kinds = [(mode, kind) for mode in ("as_fused", "corrected") for kind in ("isolated", "fused")]
    rows: list[Row] = [
        (
            str(pairs[0]["norm"]),
            f"{pairs[0]['isolated']}, {pairs[0]['fused']}",
            *(Value.of(found) if (found := _known(pairs, f"{mode}_{kind}")) else None for mode, kind in kinds),
        )
        for pairs in norms
    ]
    columns = ("norm", "isolated, fused", *(f"{mode.replace('_', ' ')}, {kind}" for mode, kind in kinds))
    note = (
        "By the rule an isolated channel keeps its own variance exactly, and in the first norm that is right. Further "
        "on it reads fused channels instead of those it was trained on, and what it computes from them varies less: "
        "that is the limit of the rule, also where every norm before is right. Where they follow the rule, too, the "
        "errors add up along the network."
    )
    title = "Variances by the data-free rule, relative to the measured ones (medians over channels)"
    return Table("variances", title, columns, tuple(rows), note)


def _known(pairs: Sequence[dict[str, Any]], ratio: str) -> list[float]:
    """A ratio in every pair that has such channels."""
    return [found for row in pairs if (found := row[ratio]) is not None]


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    grid = make_grid(scale)
    free, right = (grid.mean(results, label, 0.0) for label in (FREE, MEASURED))
    a, b = grid.alone(results)
    ratios = [_known(pairs, "as_fused_isolated") for pairs in norms(scale, results)]
    first, *later = (fmean(found) for found in ratios if found)
    return [
        Verdict.of(
            "Without data, statistics of batch norms follow from variances and cosines (within five points, at α = 0).",
            [abs(right - free) < 5],
            f"{grid.over}: data-free {free:.2f} %, recalibrated {right:.2f} %; variances of isolated channels by the "
            f"rule are {first:.2f} times the measured ones in the first norm, and {min(later):.2f} to "
            f"{max(later):.2f} times further on",
        ),
        Verdict.of(
            "Fused without data to the size of one, two ResNet-18 stay near the single networks (within 15 points; "
            "paper: 66.4 % of 79.8 and 76.7).",
            [free > min(a, b) - 15],
            f"{grid.over}: {free:.2f} %, of single networks of {a:.2f} and {b:.2f} %",
        ),
    ]


EXPERIMENT = Experiment(
    "split_norms", "Matching and norm statistics of split ResNet-18", ("Table 1",), "CIFAR-10", cells, report, claims
)
