"""Draws docs/images/directions.png: what a rotation fuses, on two small transformers trained on handwritten digits.

Run it with the package and its extras [demo,study] installed; it takes a few minutes on one core.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import partialfusion as pf
from partialfusion import demo as digits

Matrix = NDArray[np.float64]
WIDTH, EPOCHS = 24, 40
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
INK, CHANNELS, DIRECTIONS = "#333333", "#8a8a8a", "#2a8c6a"


class Patches(nn.Module):
    """An image of 8 × 8 pixels as 16 patches → two blocks of a transformer → 10 logits."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.place = nn.Linear(4, WIDTH), nn.Parameter(0.1 * torch.randn(16, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def stream(self, x: Tensor) -> Tensor:
        """What the last layer reads, one row for each patch."""
        patches = x.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        return self.norm(self.blocks(self.embed(patches) + self.place))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stream(x).mean(1))


def trained(seed: int, sample: digits.Sample) -> Patches:
    net = Patches(seed)
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(sample)).split(64):
            drawn = sample[batch]
            optimiser.zero_grad()
            F.cross_entropy(net(drawn.images), drawn.digits).backward()
            optimiser.step()
    return net.eval()


def correlations(models: tuple[nn.Module, ...], images: Tensor) -> Matrix:
    """(n × m) of what the last layers of two networks read."""
    found = []
    for model in models:
        seen: list[Tensor] = []
        hook = model.get_submodule("norm").register_forward_hook(lambda module, args, out, to=seen: to.append(out))
        with torch.no_grad():
            model(images)
        hook.remove()
        x = seen[0].flatten(0, 1).double()
        x = x - x.mean(0)
        found.append(x / x.norm(dim=0).clamp_min(1e-12))
    return (found[0].T @ found[1]).numpy()


def show(ax: Axes, matrix: Matrix, title: str, label: str) -> None:
    ax.imshow(np.abs(matrix), cmap="Greys", vmin=0, vmax=1)
    ax.set_title(title, fontsize=11, color=INK)
    ax.set_xlabel(f"{label} of B")
    ax.set_ylabel(f"{label} of A")
    ax.set_xticks([])
    ax.set_yticks([])


def drawn() -> Figure:
    training, test = digits.load()
    models = (trained(1, training), trained(2, training))
    data = training.images[:512]
    fused = {
        (similarity, alpha): pf.fuse(
            models,
            data[:2],
            alpha=alpha,
            data=[data],
            method="partial-ot",
            similarity=similarity,
            align="greedy",
            round_to=1,
        )
        for similarity in ("permutation", "rotation")
        for alpha in ALPHAS
    }
    channels = correlations(models, data)
    rows, cols = linear_sum_assignment(-channels)
    order = np.argsort(-channels[rows, cols])
    channels = channels[np.ix_(rows[order], cols[order])]
    directions = correlations(fused["rotation", 0.5].equivalents, data)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.7), layout="constrained")
    show(left, channels, "1  Channels, matched one to one", "channels")
    show(middle, directions, "2  Directions: the streams rotated", "directions")
    for similarity, colour in (("permutation", CHANNELS), ("rotation", DIRECTIONS)):
        scores = [score(fused[similarity, alpha].model, test) for alpha in ALPHAS]
        right.plot(ALPHAS, scores, "o-", color=colour, label=f'similarity="{similarity}"')
        print(similarity, [f"{s:.1f}" for s in scores])
    right.set_title("3  Fused, without refit", fontsize=11, color=INK)
    right.set_xlabel("alpha")
    right.set_ylabel("test accuracy, %")
    right.legend(frameon=False)
    right.spines[["top", "right"]].set_visible(False)
    ours, theirs = np.abs(channels.diagonal()).mean(), np.abs(directions.diagonal()).mean()
    print(f"mean correlation of pairs: channels {ours:.2f}, directions {theirs:.2f}")
    print("networks", [f"{score(m, test):.1f}" for m in models])
    return figure


def score(model: nn.Module, test: digits.Sample) -> float:
    return 100 * digits.accuracy(digits.logits(model, test), test)


if __name__ == "__main__":
    drawn().savefig(Path(__file__).with_name("images") / "directions.png", dpi=110)
