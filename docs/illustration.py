"""Draws the pictures of docs/concepts.md from real runs: two small networks trained on handwritten digits, and fused.

Run it with the package and its extras [demo,study] installed; it takes about a minute on one core.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

import partialfusion as pf
from partialfusion import demo as digits

A, B, BOTH, INK, PALE = "#2f6fb3", "#d9822b", "#7a4fa3", "#333333", "#dddddd"
IMAGES = Path(__file__).with_name("images")
WIDTH, ALPHA, SPACE = 8, 0.4, "second"
SEEDS = range(5)


class Small(nn.Module):
    """64 pixels → two hidden layers of a few channels with GELU → 10 logits."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, 10)
        for layer in (self.first, self.second, self.output):
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)

    def channels(self, x: Tensor) -> Tensor:
        """The second hidden layer, before its activation function: what the matching compares."""
        return self.second(F.gelu(self.first(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(F.gelu(self.channels(x)))


@dataclass(frozen=True)
class Run:
    """Two trained networks, their fusion, and the images that were used as data and for testing."""

    a: Small
    b: Small
    fused: pf.Fusion
    data: Tensor
    test: digits.Sample

    def accuracy(self, model: nn.Module) -> float:
        return 100 * digits.accuracy(digits.logits(model, self.test), self.test)


def run() -> Run:
    """The specialist on one digit and its counterpart, as in the demo, but with eight channels per layer."""
    training, test = digits.load()
    known, others = digits.split(training, digits.DIGIT, torch.Generator().manual_seed(0))
    a, b = trained(known, 1), trained(others, 2)
    data = training.images[:512]
    return Run(a, b, pf.fuse([a, b], data[:2], alpha=ALPHA, data=[data], method="partial-ot"), data, test)


def trained(sample: digits.Sample, seed: int, steps: int = 3000) -> Small:
    generator = torch.Generator().manual_seed(seed)
    net = Small(generator)
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        drawn = sample[torch.randint(len(sample), (32,), generator=generator)]
        optimiser.zero_grad()
        F.cross_entropy(net(drawn.images), drawn.digits).backward()
        optimiser.step()
    return net.eval()


@dataclass(frozen=True)
class Matched:
    """Channels of one space: pairs (a, b) that were fused, and those of each network that stay isolated."""

    pairs: list[tuple[int, int]]
    alone: tuple[list[int], list[int]]

    @classmethod
    def of(cls, fusion: pf.Fusion, space: str) -> Matched:
        first, second = fusion.plan[space].pairs
        at = {int(t): int(s) for t, s in zip(second.target, second.source, strict=True)}
        found = {int(s): at.get(int(t)) for t, s in zip(first.target, first.source, strict=True)}
        pairs = sorted((i, j) for i, j in found.items() if j is not None)
        taken = {j for _, j in pairs}
        return cls(pairs, ([i for i, j in found.items() if j is None], [j for j in range(WIDTH) if j not in taken]))


def unit(channels: Tensor) -> np.ndarray:
    """(images × n) → (n × images), centred and of length one: inner products are correlations."""
    found = channels.detach().double().numpy().T
    found = found - found.mean(1, keepdims=True)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def features(ax: Axes, ours: np.ndarray, theirs: np.ndarray, matched: Matched) -> None:
    """All channels in the plane that keeps most of their distances; fused pairs are joined."""
    both = np.concatenate([ours, theirs])
    centred = both - both.mean(0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    places = left[:, :2] * sizes[:2]
    for i, j in matched.pairs:
        ax.plot(*places[[i, WIDTH + j]].T, color=BOTH, lw=2, alpha=0.6, zorder=1)
    for side, colour in ((0, A), (1, B)):
        alone = set(matched.alone[side])
        for k in range(WIDTH):
            x, y = places[side * WIDTH + k]
            ax.scatter([x], [y], s=210, color=colour, edgecolor=INK if k in alone else "white", lw=1.6, zorder=2)
            ax.text(x, y, str(k), color="white", ha="center", va="center", fontsize=8.5, zorder=3)
    explained = (sizes[:2] ** 2).sum() / (sizes**2).sum()
    ax.set_title("1  Which channels respond alike?", fontsize=11, color=INK)
    ax.set_xlabel(f"A is blue, B orange; dark rims are isolated\n(two axes, {explained:.0%} of the squared distances)")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.margins(0.12)


def alignment(ax: Axes, cost: np.ndarray, matched: Matched) -> None:
    """The cost of every pair, and the pairs that were chosen."""
    rows = [i for i, _ in matched.pairs] + matched.alone[0]
    cols = [j for _, j in matched.pairs] + matched.alone[1]
    ax.imshow(cost[np.ix_(rows, cols)], cmap="Greys", vmin=0, vmax=2)
    for k in range(len(matched.pairs)):
        ax.add_patch(Rectangle((k - 0.46, k - 0.46), 0.92, 0.92, fill=False, edgecolor=BOTH, lw=2.5))
        i, j = matched.pairs[k]
        ax.text(k, k, f"{cost[i, j]:.2f}", ha="center", va="center", fontsize=7, color=BOTH)
    edge = len(matched.pairs) - 0.5
    for line in (ax.axhline, ax.axvline):
        line(edge, color=INK, lw=0.8, ls=":")
    ax.set_xticks(range(WIDTH), [str(c) for c in cols], color=B)
    ax.set_yticks(range(WIDTH), [str(r) for r in rows], color=A)
    ax.set_xlabel("channel of B; those to the right of the line stay isolated")
    ax.set_ylabel("channel of A")
    ax.set_title("2  The cheapest pairs are matched, the rest is not", fontsize=11, color=INK)


def network(ax: Axes, fusion: pf.Fusion) -> None:
    """The hidden layers of the fused network; lines are its weights."""
    kinds = [colours(fusion, name) for name in ("first", "second")]
    columns = [[PALE] * 8, *kinds, [PALE] * 10]
    weights = [None, fusion.model.second.weight, fusion.model.output.weight]
    places = [[(float(k), (len(c) - 1) / 2 - i) for i in range(len(c))] for k, c in enumerate(columns)]
    for k, (left, right) in enumerate(pairwise(places)):
        weight = weights[k]
        strength = np.ones((len(right), len(left))) * 0.25
        if weight is not None:
            strength = weight.detach().abs().numpy() / float(weight.detach().abs().max())
        for j, (x1, y1) in enumerate(right):
            for i, (x0, y0) in enumerate(left):
                ends = {columns[k][i], columns[k + 1][j]}
                if ends == {A, B}:
                    continue
                colour = A if A in ends else B if B in ends else BOTH
                ax.plot([x0, x1], [y0, y1], color=colour, lw=0.25 + 1.8 * strength[j, i], alpha=0.45, zorder=1)
    for column, colour in zip(places, columns, strict=True):
        ax.scatter(*zip(*column, strict=True), s=95, c=colour, edgecolor="white", lw=1, zorder=2)
    for k, name in enumerate(("input", "first", "second", "output")):
        ax.text(k, -6.6, name, ha="center", fontsize=9, color=INK)
    ax.set_xlim(-0.3, 3.3)
    ax.set_ylim(-7.2, 6)
    ax.axis("off")
    ax.set_title("3  One network: isolated of A, fused, isolated of B", fontsize=11, color=INK)


def colours(fusion: pf.Fusion, space: str) -> list[str]:
    """The colour of each channel of a space of the result: isolated of A, fused, isolated of B."""
    support = fusion.plan[space].support()
    return [BOTH if a and b else A if a else B for a, b in support]


def illustration(found: Run) -> Figure:
    """The paper's illustration of the idea, from a run."""
    ours, theirs = (unit(net.channels(found.data)) for net in (found.a, found.b))
    matched = Matched.of(found.fused, SPACE)
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.9), width_ratios=(1.1, 1, 1.15))
    features(axes[0], ours, theirs, matched)
    alignment(axes[1], 1 - ours @ theirs.T, matched)
    network(axes[2], found.fused)
    return figure


def matrices(found: Run) -> Figure:
    """The one formula with the numbers of a run: W' = Σ write · W · read, and the blocks of W'."""
    out, into = (found.fused.plan[name].pairs for name in ("second", "first"))
    weights = [net.second.weight.detach().numpy() for net in (found.a, found.b)]
    result = found.fused.model.second.weight.detach().numpy()
    products = [o.write_matrix() @ w @ i.read_matrix() for o, w, i in zip(out, weights, into, strict=True)]
    assert np.allclose(sum(products), result, atol=1e-5)
    scale = float(np.abs(result).max())
    figure = plt.figure(figsize=(14, 5.2))
    grid = figure.add_gridspec(2, 5, width_ratios=(1, 1, 1, 0.16, 2.0), wspace=0.25, hspace=0.42)
    for row, (name, colour, o, w, i) in enumerate(zip("AB", (A, B), out, weights, into, strict=True)):
        parts = (
            (f"write of {name}", o.write_matrix(), 1),
            (f"weights of {name}", w, scale),
            (f"read of {name}", i.read_matrix(), 1),
        )
        for column, (title, matrix, most) in enumerate(parts):
            ax = figure.add_subplot(grid[row, column])
            heat(ax, matrix, most)
            ax.set_title(f"{title}, {matrix.shape[0]} × {matrix.shape[1]}", fontsize=9.5, color=colour)
            if column:
                ax.text(-0.16, 0.5, "·", transform=ax.transAxes, fontsize=18, ha="center", va="center", color=INK)
        if row:
            ax.text(-2.62, 0.5, "+", transform=ax.transAxes, fontsize=18, ha="center", va="center", color=INK)
    equals = figure.add_subplot(grid[:, 3])
    equals.text(0.5, 0.5, "=", fontsize=22, ha="center", va="center", color=INK)
    equals.axis("off")
    blocks(figure.add_subplot(grid[:, 4]), found.fused, result, scale)
    return figure


def heat(ax: Axes, matrix: np.ndarray, most: float) -> None:
    shown = np.ma.masked_equal(matrix, 0)
    ax.imshow(shown, cmap="PuOr_r", vmin=-most, vmax=most)
    ax.set_facecolor("white")
    ax.set_xticks([])
    ax.set_yticks([])


def blocks(ax: Axes, fusion: pf.Fusion, weight: np.ndarray, scale: float) -> None:
    """The weight of the result, with lines between the isolated channels of A, the fused ones and those of B."""
    heat(ax, weight, scale)
    names = ("isolated A", "fused", "isolated B")
    for axis, space in ((0, "second"), (1, "first")):
        kinds = colours(fusion, space)
        counts = [kinds.count(c) for c in (A, BOTH, B)]
        edges = np.cumsum([0, *counts])
        for edge in edges[1:-1]:
            (ax.axhline if axis == 0 else ax.axvline)(edge - 0.5, color=INK, lw=1)
        middles = [(lo + hi) / 2 - 0.5 for lo, hi in pairwise(edges)]
        set_ticks = ax.set_yticks if axis == 0 else ax.set_xticks
        set_ticks(middles, [f"{name}\n{n}" for name, n in zip(names, counts, strict=True)], fontsize=9)
        for tick, colour in zip(ax.get_yticklabels() if axis == 0 else ax.get_xticklabels(), (A, BOTH, B), strict=True):
            tick.set_color(colour)
    n = len(weight)
    for x, y in ((n - 1.5, 0.5), (0.8, n - 1.5)):
        ax.text(x, y, "zero", ha="center", va="center", fontsize=9, color=INK)
    ax.set_title(f"weights of the result, {n} × {n}", fontsize=10.5, color=INK)
    ax.tick_params(length=0)


class Block(nn.Module):
    """Two convolutions with batch norm, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Residual(nn.Module):
    """A stem, one block with a residual sum, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.block = Block(8)
        self.classifier = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.block(self.stem(x)).mean((2, 3)))


def spaces() -> Figure:
    """Which axis of which parameter carries which space, as traced."""
    torch.manual_seed(0)
    blueprint = pf.trace(Residual(), torch.randn(2, 3, 8, 8))
    shown = [s for s in blueprint if s.kind == "elastic"]
    paint = dict(zip([s.name for s in shown], (BOTH, "#2a9d6f"), strict=True))
    names = [n for n in Residual().state_dict() if n.endswith("weight") or "running_mean" in n]
    figure, ax = plt.subplots(figsize=(11, 3.0))
    for k, name in enumerate(names):
        bound = {axis: found[0][0].name for axis, found in blueprint.axes.get(name, {}).items()}
        flat = len(blueprint.shapes[name]) == 1
        width, height, x = (0.16 if flat else 0.62), 1.0, k * 1.25
        ax.add_patch(Rectangle((x, 0), width, height, facecolor="#f4f2f7", edgecolor=PALE))
        edges = {0: ([x, x], [0, height]), 1: ([x, x + width], [height, height])}
        for axis, (xs, ys) in edges.items():
            if axis == 1 and flat:
                continue
            colour = paint.get(bound.get(axis, ""), "#aaaaaa")
            ax.plot(xs, ys, color=colour, lw=6, solid_capstyle="butt")
        ax.text(
            x + width / 2,
            -0.12,
            name.replace(".weight", "").replace("running_mean", "mean"),
            ha="center",
            va="top",
            fontsize=8.5,
            rotation=18,
        )
        if not flat:
            ax.text(
                x + width / 2,
                0.45,
                "×".join(map(str, blueprint.shapes[name][:2])),
                ha="center",
                va="center",
                fontsize=9,
                color=INK,
            )
    legend = [(paint[s.name], f"space {s.name}, {s.width} channels") for s in shown]
    for k, (colour, text) in enumerate([*legend, ("#aaaaaa", "input or output: stays as it is")]):
        ax.plot([k * 3.5, k * 3.5 + 0.4], [1.8, 1.8], color=colour, lw=6, solid_capstyle="butt")
        ax.text(k * 3.5 + 0.55, 1.8, text, va="center", fontsize=10, color=INK)
    note = "Left edge: the channels that a parameter writes or scales. Top edge: the channels that it reads."
    ax.text(0, 1.42, note, va="center", fontsize=9.5, color=INK)
    ax.set_xlim(-0.3, len(names) * 1.25)
    ax.set_ylim(-0.62, 2.0)
    ax.axis("off")
    return figure


def dials() -> Figure:
    """Accuracy by share at some sizes, and by size with and without refit: five pairs of the demo's networks."""
    shares, alphas = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    by_share: dict[tuple[float, float], list[float]] = {}
    by_size: dict[tuple[float, bool], list[float]] = {}
    for seed in SEEDS:
        pair = digits.specialists(seed)
        models, x = [pair.a, pair.b], pair.data_b.images[:2]
        blueprint = pf.trace(pair.b, x)
        data = [torch.cat([pair.data_a.images, pair.data_b.images])[:1000]]

        def measured(model: nn.Module, test: digits.Sample = pair.test) -> float:
            return 100 * digits.accuracy(digits.logits(model, test), test)

        for alpha in (0.0, 0.4, 1.0):
            for share in shares:
                fused = pf.fuse(models, x, alpha=alpha, mix=[share, 1 - share], round_to=1, blueprint=blueprint)
                by_share.setdefault((alpha, share), []).append(measured(fused.model))
        for alpha in alphas:
            fused = pf.fuse(
                models,
                x,
                alpha=alpha,
                round_to=1,
                features="weights",
                data=data,
                method="partial-ot",
                blueprint=blueprint,
                progress=False,
            )
            by_size.setdefault((alpha, False), []).append(measured(fused.model))
            by_size.setdefault((alpha, True), []).append(measured(pf.refit(fused, data, progress=False).model))
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4))
    for alpha, colour in ((0.0, PALE), (0.4, BOTH), (1.0, INK)):
        line = [mean(by_share[alpha, share]) for share in shares]
        label = {0.0: "alpha = 0, one network's size", 0.4: "alpha = 0.4", 1.0: "alpha = 1, the ensemble"}[alpha]
        left.plot(shares, line, "o-", color="#aaaaaa" if colour == PALE else colour, label=label, ms=4)
        print(f"alpha {alpha:g} by share of A:", " ".join(f"{v:.1f}" for v in line))
    left.set_xlabel("share of A in the mix (B has the rest)")
    for refitted, style, label in (
        (False, "o--", "fused"),
        (True, "o-", "fused and refitted on 1,000 unlabelled images"),
    ):
        line = [mean(by_size[alpha, refitted]) for alpha in alphas]
        right.plot(alphas, line, style, color=BOTH, label=label, ms=4)
        print("refitted" if refitted else "plain", "by alpha:", " ".join(f"{v:.1f}" for v in line))
    right.set_xlabel("alpha, at equal shares")
    for ax in (left, right):
        ax.set_ylabel("accuracy on all digits, %")
        ax.grid(alpha=0.25)
        ax.legend(fontsize=8)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    return figure


def save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / f"{name}.png", dpi=100, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    torch.set_num_threads(1)
    found = run()
    models = {"A": found.a, "B": found.b, "fused": found.fused.model}
    print({name: f"{found.accuracy(model):.1f}" for name, model in models.items()}, found.fused.summary(), sep="\n")
    for alpha in (0.0, 1.0):
        other = pf.fuse([found.a, found.b], found.data[:2], alpha=alpha, data=[found.data], method="partial-ot")
        print(f"alpha {alpha:g}: {found.accuracy(other.model):.1f}")
    save(illustration(found), "illustration")
    save(matrices(found), "matrices")
    save(spaces(), "spaces")
    save(dials(), "dials")


if __name__ == "__main__":
    main()
