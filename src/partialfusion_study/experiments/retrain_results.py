"""Partially fused networks before and after fine-tuning."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from .experiment import Experiment, Report, Results
from .settings import Scale, setting
from .tuning import Tuning, mlps, resnets

MLP = {"before": (84.1, 86.7, 87.4, 87.5, 87.7, 87.9, 88.1), "after": (95.1, 95.7, 96.1, 96.2, 96.3, 96.5, 96.5)}
RESNET = {"before": (66.4, 79.2, 83.4, 87.4, 88.9, 90.6, 91.3), "after": (85.3, 88.3, 90.0, 90.3, 90.8, 91.4, 91.8)}


def cells(scale: Scale) -> list[Cell]:
    return [cell for tuning in (mlps(scale), resnets(scale)) for cell in (*tuning.cells("fusion"), *tuning.parents())]


def report(scale: Scale, results: Results) -> Report:
    parts, findings = [], []
    blocks = (("mlp", mlps(scale), MLP, "93.8 and 87.8"), ("resnet", resnets(scale), RESNET, "79.8 and 76.7"))
    for name, tuning, paper, parents in blocks:
        rows = [
            tuning.row(results, "fused", "fusion", "before", paper=paper["before"]),
            tuning.row(results, "fine-tuned", "fusion", "after", paper=paper["after"]),
        ]
        title = f"{_title(tuning)}: accuracy (%) before and after fine-tuning on {tuning.images} images"
        parts.append(tuning.table(name, title, rows, tuning.note(results, parents)))
        ends = [
            fmean(results(tuning.cell(k, "fusion", a))["after"] for k in range(len(tuning.pairs)))
            for a in (tuning.alphas[0], tuning.alphas[-1])
        ]
        low, high = (f"{end:.1f} % (α = {a:g})" for end, a in zip(ends, (0, tuning.alphas[-1]), strict=True))
        findings.append(f"{_title(tuning)}: {low} to {high} after fine-tuning")
    text = " ".join(setting(scale, tuning.pairs) for tuning in (mlps(scale), resnets(scale)))
    return Report("; ".join(findings) + ".", text, tuple(parts))


def _title(tuning: Tuning) -> str:
    return "MLP on split MNIST" if tuning.pairs[0].data == "mnist" else "ResNet-18 on split CIFAR-10"


EXPERIMENT = Experiment(
    "retrain-results", "Fusion and fine-tuning", ("tab:retrain-results",), "MNIST, CIFAR-10", cells, report
)
