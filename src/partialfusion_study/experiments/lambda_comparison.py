"""The share of the models before and after fine-tuning."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from .experiment import Experiment, Report, Results
from .settings import Scale, setting
from .tuning import Tuning, resnets

PAPER = {
    0.1: {
        "before": (77.04, 77.41, 77.52, 77.69, 78.46, 78.84, 79.11),
        "after": (85.31, 85.79, 87.30, 87.99, 88.61, 89.42, 89.64),
    },
    0.5: {
        "before": (66.39, 77.19, 83.78, 87.35, 88.92, 90.58, 91.29),
        "after": (85.32, 88.31, 90.01, 90.28, 90.81, 91.39, 91.81),
    },
}


SHARES = {0.1: 0.9, 0.5: 0.5}  # λ, which is the share of A here as in the paper's equation → the share of B


def cells(scale: Scale) -> list[Cell]:
    tuning = resnets(scale)
    return [cell for share in SHARES.values() for cell in tuning.cells("fusion", share)] + tuning.parents()


def report(scale: Scale, results: Results) -> Report:
    tuning = resnets(scale)
    rows = [
        tuning.row(
            results,
            f"λ = {share:g}, {'fused' if what == 'before' else 'fine-tuned'}",
            "fusion",
            what,
            SHARES[share],
            paper[what],
        )
        for share, paper in PAPER.items()
        for what in ("before", "after")
    ]
    better = {
        what: [a for a in tuning.alphas if _mean(tuning, results, a, 0.5, what) > _mean(tuning, results, a, 0.9, what)]
        for what in ("before", "after")
    }
    listed = {what: ", ".join(f"{a:g}" for a in found) or "none" for what, found in better.items()}
    finding = (
        f"λ = 0.5 is better than λ = 0.1 at alpha {listed['before']} before fine-tuning, and at alpha "
        f"{listed['after']} after it."
    )
    table = tuning.table(
        "lambda", "ResNet-18 on split CIFAR-10, accuracy (%)", rows, tuning.note(results, "79.8 and 76.7")
    )
    text = (
        f"{setting(scale, tuning.pairs)} Here λ is the share of model A: with λ = 0.1, the paper's ensemble has "
        "79.1 %, close to B alone."
    )
    return Report(finding, text, (table,))


def _mean(tuning: Tuning, results: Results, alpha: float, share: float, what: str) -> float:
    return fmean(results(tuning.cell(k, "fusion", alpha, share))[what] for k in range(len(tuning.pairs)))


EXPERIMENT = Experiment(
    "lambda-comparison", "The choice of λ and fine-tuning", ("tab:lambda-comparison",), "CIFAR-10", cells, report
)
