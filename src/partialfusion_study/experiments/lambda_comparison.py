"""The share of the models before and after fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence

from ..cell import Cell
from ..report import Row, Verdict
from .experiment import Experiment, Report, Results
from .settings import ALPHAS, Scale, setting
from .tuning import RULE, resnets

PAPER = {
    0.1: {
        "before": ("77.04", "77.41", "77.52", "77.69", "78.46", "78.84", "79.11"),
        "after": ("85.31", "85.79", "87.30", "87.99", "88.61", "89.42", "89.64"),
    },
    0.5: {
        "before": ("66.39", "77.19", "83.78", "87.35", "88.92", "90.58", "91.29"),
        "after": ("85.32", "88.31", "90.01", "90.28", "90.81", "91.39", "91.81"),
    },
}


SHARES = {0.1: 0.9, 0.5: 0.5}  # λ, which is the share of A here as in the paper's equation → the share of B


def cells(scale: Scale) -> list[Cell]:
    tuning = resnets(scale)
    return [cell for share in SHARES.values() for cell in tuning.cells("fusion", share)] + tuning.parents()


def report(scale: Scale, results: Results) -> Report:
    tuning = resnets(scale)
    gaps = gained(scale, results)
    better = {what: [a for a, gap in gaps[what].items() if gap > 0] for what in gaps}
    many = len(tuning.alphas)
    finding = (
        f"λ = 0.5 is better than λ = 0.1 at {len(better['before'])} of {many} sizes before fine-tuning, and at "
        f"{len(better['after'])} of {many} after it."
    )

    def rows(results: Results) -> list[Row]:
        return [
            tuning.row(results, f"λ = {share:g}, {words}", "fusion", what, SHARES[share], paper[what])
            for share, paper in PAPER.items()
            for what, words in (("before", "fused"), ("after", "fine-tuned"))
        ]

    title = "ResNet-18 on split CIFAR-10, accuracy (%)"
    table = tuning.table(results, "lambda", title, rows, tuning.note(results, "79.8 and 76.7"))
    text = (
        f"{setting(scale, tuning.pairs)} {RULE} Here λ is the share of model A, as in the paper's equation (1), and "
        "λ = 0.1 means 0.9 of B. The paper's ensemble has 79.1 % with λ = 0.1, and its model A alone 79.8 %: with 0.9 "
        "of A the ensemble would hardly be below A alone. In the published code λ is the share of B; that reading was "
        "not tested."
    )
    return Report(finding, text, (table,))


def gained(scale: Scale, results: Results) -> dict[str, dict[float, float]]:
    """ "before" and "after" fine-tuning → alpha → λ = 0.5 minus λ = 0.1, in points."""
    tuning = resnets(scale)
    return {
        what: {
            a: tuning.mean(results, "fusion", a, what) - tuning.mean(results, "fusion", a, what, SHARES[0.1])
            for a in tuning.alphas
        }
        for what in ("before", "after")
    }


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    gaps = gained(scale, results)
    listed = {what: ", ".join(f"{g:+.2f} (α = {a:g})" for a, g in found.items()) for what, found in gaps.items()}
    return [
        Verdict.of_size(
            "Before fine-tuning, λ = 0.1 is much better at α = 0, by 10.65 points.",
            -gaps["before"][0.0],
            10.65,
            f"λ = 0.1 minus λ = 0.5: {-gaps['before'][0.0]:+.2f} points",
        ),
        Verdict.of(
            "Before fine-tuning, λ = 0.5 is better from α = 0.4 on.",
            [gap > 0 for a, gap in gaps["before"].items() if a >= 0.4],
            f"λ = 0.5 minus λ = 0.1 in points: {listed['before']}",
            cases="sizes from 0.4 on",
        ).among("α", ALPHAS[2:], gaps["before"]),
        Verdict.of(
            "After fine-tuning, λ = 0.5 is better at every α.",
            [gap > 0 for gap in gaps["after"].values()],
            f"λ = 0.5 minus λ = 0.1 in points: {listed['after']}",
            cases="sizes",
        ).among("α", ALPHAS, gaps["after"]),
    ]


EXPERIMENT = Experiment(
    "lambda-comparison", "The choice of λ and fine-tuning", ("Table 7",), "CIFAR-10", cells, report, claims
)
