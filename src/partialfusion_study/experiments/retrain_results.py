"""Partially fused networks before and after fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence

from ..cell import Cell
from ..report import Row, Verdict
from .experiment import Experiment, Report, Results
from .settings import ALPHAS, Scale, setting
from .tuning import RULE, Tuning, mlps, resnets, rises

Paper = dict[str, Sequence[str]]
MLP: Paper = {
    "before": ("84.1", "86.7", "87.4", "87.5", "87.7", "87.9", "88.1"),
    "after": ("95.1", "95.7", "96.1", "96.2", "96.3", "96.5", "96.5"),
}
RESNET: Paper = {
    "before": ("66.4", "79.2", "83.4", "87.4", "88.9", "90.6", "91.3"),
    "after": ("85.3", "88.3", "90.0", "90.3", "90.8", "91.4", "91.8"),
}


def cells(scale: Scale) -> list[Cell]:
    return [cell for tuning in (mlps(scale), resnets(scale)) for cell in (*tuning.cells("fusion"), *tuning.parents())]


def report(scale: Scale, results: Results) -> Report:
    parts, ends = [], []
    blocks = (("mlp", mlps(scale), MLP, "93.8 and 87.8"), ("resnet", resnets(scale), RESNET, "79.8 and 76.7"))
    for name, tuning, paper, parents in blocks:

        def rows(results: Results, tuning: Tuning = tuning, paper: Paper = paper) -> list[Row]:
            return [
                tuning.row(results, "fused", "fusion", "before", paper=paper["before"]),
                tuning.row(results, "fine-tuned", "fusion", "after", paper=paper["after"]),
            ]

        title = f"{_title(tuning)}: accuracy (%) before and after fine-tuning on {tuning.images:,} images"
        parts.append(tuning.table(results, name, title, rows, tuning.note(results, parents)))
        ends.append(f"{_title(tuning)} {tuning.mean(results, 'fusion', tuning.alphas[0], 'after'):.1f} %")
    text = " ".join([*(setting(scale, tuning.pairs) for tuning in (mlps(scale), resnets(scale))), RULE])
    finding = f"Fused to the size of one model and fine-tuned: {', '.join(ends)}."
    return Report(finding, text, tuple(parts))


def _title(tuning: Tuning) -> str:
    return "MLP on split MNIST" if tuning.pairs[0].data == "mnist" else "ResNet-18 on split CIFAR-10"


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    return [verdict for tuning in (mlps(scale), resnets(scale)) for verdict in _claims(tuning, results)]


def _claims(tuning: Tuning, results: Results) -> list[Verdict]:
    title, single = _title(tuning), max(tuning.alone(results))
    before, after = (tuning.curve(results, "fusion", what) for what in ("before", "after"))
    return [
        Verdict.of(
            f"{title}: fine-tuned, the fused network is better than both networks at every α.",
            [found > single for found in after],
            f"the better network {single:.2f} %; fine-tuned {tuning.listed(after)}",
            cases="sizes",
        ).among("α", ALPHAS, tuning.alphas),
        rises(tuning, before, f"{title}: more isolated neurons are better before fine-tuning."),
        rises(tuning, after, f"{title}: more isolated neurons are better after fine-tuning."),
    ]


EXPERIMENT = Experiment(
    "retrain-results", "Fusion and fine-tuning", ("Table 1",), "MNIST, CIFAR-10", cells, report, claims
)
