"""Partially fused networks before and after fine-tuning."""

from __future__ import annotations

from statistics import fmean

from ..cell import Cell
from .experiment import Experiment, Results, Told
from .settings import Scale
from .tuning import Tuning, mlps, resnets
from .words import setting

MLP = {"before": (84.1, 86.7, 87.4, 87.5, 87.7, 87.9, 88.1), "after": (95.1, 95.7, 96.1, 96.2, 96.3, 96.5, 96.5)}
RESNET = {"before": (66.4, 79.2, 83.4, 87.4, 88.9, 90.6, 91.3), "after": (85.3, 88.3, 90.0, 90.3, 90.8, 91.4, 91.8)}


def grid(scale: Scale) -> list[Cell]:
    return [cell for own in (mlps(scale), resnets(scale)) for cell in (*own.cells("fusion"), *own.parents())]


def tell(scale: Scale, results: Results) -> Told:
    parts, findings = [], []
    blocks = (("mlp", mlps(scale), MLP, "93.8 / 87.8"), ("resnet", resnets(scale), RESNET, "79.8 / 76.7"))
    for name, own, paper, parents in blocks:
        rows = [
            own.row(results, "fused", "fusion", "before", paper=paper["before"]),
            own.row(results, "fine-tuned", "fusion", "after", paper=paper["after"]),
        ]
        title = f"{_title(own)}: accuracy (%) before and after fine-tuning on {own.images} images"
        parts.append(own.table(name, title, rows, own.note(results, parents)))
        ends = [
            fmean(results(own.cell(k, "fusion", a))["after"] for k in range(len(own.pairs)))
            for a in (own.alphas[0], own.alphas[-1])
        ]
        findings.append(
            f"{_title(own)}: {ends[0]:.1f} % (α = 0) to {ends[1]:.1f} % (α = {own.alphas[-1]:g}) after fine-tuning"
        )
    text = " ".join(setting(scale, own.pairs) for own in (mlps(scale), resnets(scale)))
    return Told("; ".join(findings) + ".", text, tuple(parts))


def _title(own: Tuning) -> str:
    return "MLP on split MNIST" if own.pairs[0].data == "mnist" else "ResNet-18 on split CIFAR-10"


EXPERIMENT = Experiment(
    "retrain-results", "Fusion and fine-tuning", ("tab:retrain-results",), "MNIST, CIFAR-10", grid, tell
)
