"""Draws docs/picture.png: the idea, and accuracy against size as the demo measures it.

Needs matplotlib: pip install matplotlib && python docs/picture.py
"""

from __future__ import annotations

import itertools
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

from partialfusion import demo as digits

A, B, BOTH, INK = "#2f6fb3", "#d9822b", "#7a4fa3", "#333333"
SEEDS = range(5)
ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def network(ax: Axes, x: float, layers: list[list[str]], title: str) -> None:
    """Columns of channels; two channels are connected when a model has both."""
    step, places = 1.0, []
    for k, colours in enumerate(layers):
        top = (len(colours) - 1) / 2
        places.append([(x + k * step, (top - i) * 0.62, c) for i, c in enumerate(colours)])
    for left, right in itertools.pairwise(places):
        for x0, y0, c0 in left:
            for x1, y1, c1 in right:
                if {c0, c1} == {A, B}:
                    continue
                colour = next((c for c in (c0, c1) if c in (A, B)), BOTH if BOTH in (c0, c1) else INK)
                ax.plot([x0, x1], [y0, y1], color=colour, lw=0.7, alpha=0.45, zorder=1)
    for column in places:
        for px, py, c in column:
            ax.scatter([px], [py], s=120, color=c, edgecolor="white", lw=1.2, zorder=2)
    ax.text(x + step * (len(layers) - 1) / 2, 2.55, title, ha="center", va="bottom", fontsize=11, color=INK)


def idea(ax: Axes) -> None:
    ends = [INK] * 2
    network(ax, 0.0, [ends, [A] * 5, [A] * 5, ends], "network A")
    network(ax, 4.4, [ends, [B] * 5, [B] * 5, ends], "network B")
    fused = [A] * 2 + [BOTH] * 3 + [B] * 2
    network(ax, 9.4, [ends, fused, fused, ends], "partially fused, alpha = 0.4")
    ax.annotate("", (9.0, 0), (7.85, 0), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.5})
    notes = ((A, "isolated: A alone", 1.55), (BOTH, "fused: average of both", 0.0), (B, "isolated: B alone", -1.55))
    for colour, text, y in notes:
        ax.text(12.75, y, text, color=colour, va="center", fontsize=10)
    ax.set_xlim(-0.4, 15.6)
    ax.set_ylim(-2.6, 3.1)
    ax.axis("off")


def dial(ax: Axes) -> None:
    torch.set_num_threads(1)
    studies = [digits.study(digits.specialists(seed), alphas=ALPHAS, shares=(0.5,), round_to=1) for seed in SEEDS]
    fused = [[p for p in s.points if p.method == "partial-ot"] for s in studies]
    ratio = [p.effective_ratio for p in fused[0]]
    accuracy = [100 * mean(points[k].accuracy for points in fused) for k in range(len(ratio))]
    ax.plot(ratio, accuracy, "o-", color=BOTH, lw=2, ms=7, label="partially fused")
    for p, r, acc in zip(fused[0], ratio, accuracy, strict=True):
        ax.annotate(f"α={p.alpha:g}", (r, acc), (0, 9), textcoords="offset points", ha="center", fontsize=8)
    for method, colour, label in (("model A", A, "network A"), ("model B", B, "network B")):
        value = 100 * mean(s.find(method).accuracy for s in studies)
        ax.axhline(value, color=colour, lw=1.2, ls="--", label=label)
    ensemble = 100 * mean(s.find("ensemble").accuracy for s in studies)
    ax.plot([2], [ensemble], "*", color=INK, ms=15, label="ensemble", zorder=3)
    average = 100 * mean(s.find("average").accuracy for s in studies)
    ax.annotate(
        f"plain average: {average:.0f} %",
        (1.0, 76.2),
        (1.06, 77.2),
        color="#b03030",
        fontsize=9,
        arrowprops={"arrowstyle": "-|>", "color": "#b03030"},
    )
    ax.set_ylim(76, 95)
    ax.set_xlabel("parameters as blocks or in a file, relative to one network")
    ax.set_ylabel("accuracy on all digits, %")
    ax.set_title("handwritten digits, mean of 5 pairs, equal shares", fontsize=11, color=INK)
    ax.grid(alpha=0.25)
    ax.legend(fontsize=8, loc="lower right")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


if __name__ == "__main__":
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.5, 4.3), width_ratios=(1.75, 1))
    idea(left)
    dial(right)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("picture.png"), dpi=110)
