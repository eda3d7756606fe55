"""Fine-tuned fusions against one network widened to the same size."""

from __future__ import annotations

from ..cell import Cell
from ..report import Value
from .experiment import Experiment, Report, Results
from .settings import Scale, setting
from .tuning import mlps, resnets

MLP = {
    "random": (94.1, 93.7, 93.1, 93.8, 92.9, 93.1, 92.8),
    "net2net": (94.5, 94.7, 94.8, 94.9, 94.7, 94.9, 95.0),
    "fusion": (95.1, 95.7, 96.1, 96.2, 96.3, 96.5, 96.5),
}
RESNET = {
    "random": (86.8, 47.9, 47.2, 48.0, 47.9, 48.3, 49.0),
    "net2net": (86.8, 86.8, 86.5, 86.8, 86.4, 86.4, 86.6),
    "fusion": (85.3, 88.3, 90.0, 90.3, 90.8, 91.4, 91.7),
}


def cells(scale: Scale) -> list[Cell]:
    blocks = mlps(scale), resnets(scale)
    fusions = [cell for tuning in blocks for cell in (*tuning.cells("fusion"), *tuning.parents())]
    return fusions + [cell for tuning in blocks for start in ("random", "net2net") for cell in tuning.cells(start)]


def report(scale: Scale, results: Results) -> Report:
    parts, findings = [], []
    for name, title, tuning, paper, alone in (
        ("mlp", "MLP on split MNIST", mlps(scale), MLP, "94.4 after fine-tuning"),
        ("resnet", "ResNet-18 on split CIFAR-10", resnets(scale), RESNET, "86.8 after fine-tuning"),
    ):
        rows = [
            tuning.row(results, "random widening", "random", "after", paper=paper["random"]),
            tuning.row(results, "Net2WiderNet", "net2net", "after", paper=paper["net2net"]),
            tuning.row(results, "partial fusion", "fusion", "after", paper=paper["fusion"]),
        ]
        note = tuning.note(results, f"model A {alone}")
        parts.append(tuning.table(name, f"{title}: accuracy (%) after fine-tuning", rows, note))
        above = [
            a for k, a in enumerate(tuning.alphas) if _mean(rows[2][k + 1]) > max(_mean(r[k + 1]) for r in rows[:2])
        ]
        findings.append(
            f"{title}: fusion is better than both baselines at alpha {', '.join(f'{a:g}' for a in above) or 'none'}"
        )
    text = " ".join(setting(scale, tuning.pairs) for tuning in (mlps(scale), resnets(scale)))
    return Report("; ".join(findings) + ".", text, tuple(parts))


def _mean(value: str | Value) -> float:
    assert isinstance(value, Value)
    return value.mean


EXPERIMENT = Experiment(
    "random-widen", "Capacity baselines of fine-tuning", ("tab:random-widen",), "MNIST, CIFAR-10", cells, report
)
