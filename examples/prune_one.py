"""One network, made smaller: four methods of generalised pruning at the same budget, with and without refit.

Neither pruning nor refitting needs labels. The method is chosen on validation images, and only the chosen network is
scored on the test images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import partialfusion as pf

BUDGET = 0.2  # of the network's parameters
METHODS = ("cluster", "zip", "magnitude", "magnitude+ot")
EPOCHS = 12


def load() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Images (n × 1 × 8 × 8), their digits (n,), and the indices of each split."""
    raw = load_digits()
    images, digits = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 16, torch.tensor(raw.target)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    return images, digits, {"test": order[:400], "validation": order[400:700], "train": order[700:]}


def network() -> nn.Module:
    """(n × 1 × 8 × 8) → (n × 10)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def train(images: Tensor, digits: Tensor) -> nn.Module:
    torch.manual_seed(0)
    net = network()
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(digits)).split(32):
            optimiser.zero_grad()
            F.cross_entropy(net(images[batch]), digits[batch]).backward()
            optimiser.step()
    return net.eval()


def main() -> dict[str, object]:
    images, digits, split = load()
    model = train(images[split["train"]], digits[split["train"]])
    batches = images[split["train"]].split(100)

    @torch.no_grad()
    def accuracy(network: nn.Module, name: str) -> float:
        return float((network(images[split[name]]).argmax(1) == digits[split[name]]).float().mean())

    blueprint = pf.trace(model, batches[0])
    whole = accuracy(model, "validation")
    print(f"the network: {sum(p.numel() for p in model.parameters()):,} parameters, {whole:.1%} on validation images")
    print(f"pruned to {BUDGET:.0%} of that:\n\n{'method':14} {'parameters':>10} {'pruned':>8} {'refitted':>9}")
    results: dict[tuple[str, bool], pf.Fusion] = {}
    scores: dict[tuple[str, bool], float] = {}
    for method in METHODS:
        pruned = pf.prune(model, batches[0], budget=BUDGET, method=method, data=batches, blueprint=blueprint)
        results |= {(method, False): pruned, (method, True): pf.refit(pruned, batches)}
        scores |= {(method, fit): accuracy(results[method, fit].model, "validation") for fit in (False, True)}
        size = pruned.count.dense
        print(f"{method:14} {size:10,} {scores[method, False]:8.1%} {scores[method, True]:9.1%}")

    best = max(scores, key=scores.__getitem__)
    tested = {"pruned": accuracy(results[best].model, "test"), "whole": accuracy(model, "test")}
    print(f"\nchosen: {best[0]}{', refitted' if best[1] else ''}")
    print(f"on the test images {tested['pruned']:.1%}, the whole network {tested['whole']:.1%}")
    return {"results": results, "scores": scores, "best": best, "tested": tested}


if __name__ == "__main__":
    main()
