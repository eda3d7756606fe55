"""Three specialists: accuracy against size as a table, a CSV file and a page, and the best network within a size limit.

The last model is the reference: every other one is matched with it. So it matters which model is last, and that is
chosen here, on validation images like everything else; the order of the others does not matter.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import partialfusion as pf

SPECIALTIES = {"low": [0, 1, 2, 3], "middle": [4, 5, 6], "high": [7, 8, 9]}  # the digits each one knows well
LIMIT = 1.8  # times the size of one model
METHODS = {"one alpha": {}, "budget 1.4": {"budget": 1.4}, "budget 1.8": {"budget": 1.8}}
EPOCHS = 12


def load() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Images (n × 64), their digits (n,), and the indices of each split."""
    raw = load_digits()
    images, digits = torch.tensor(raw.data, dtype=torch.float32) / 16, torch.tensor(raw.target)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    return images, digits, {"test": order[:400], "validation": order[400:700], "train": order[700:]}


def train(images: Tensor, digits: Tensor, specialty: list[int], seed: int) -> nn.Module:
    """A specialist: it sees all images of its specialty and a tenth of the others."""
    torch.manual_seed(seed)
    seen = torch.isin(digits, torch.tensor(specialty)) | (torch.rand(len(digits)) < 0.1)
    images, digits = images[seen], digits[seen]
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(digits)).split(16):
            optimiser.zero_grad()
            F.cross_entropy(net(images[batch]), digits[batch]).backward()
            optimiser.step()
    return net.eval()


def main(arguments: Sequence[str] | None = None) -> dict[str, object]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for frontier.csv and frontier.html")
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    images, digits, split = load()
    x, y = images[split["train"]], digits[split["train"]]
    models = {name: train(x, y, known, seed) for seed, (name, known) in enumerate(SPECIALTIES.items())}
    batches = x.split(100)

    @torch.no_grad()
    def accuracy(model: nn.Module, name: str) -> float:
        return float((model(images[split[name]]).argmax(1) == digits[split[name]]).float().mean())

    as_last = {}
    for last in models:
        order = [name for name in models if name != last] + [last]
        result = pf.fuse([models[name] for name in order], x[:2], budget=LIMIT, data=batches)
        as_last[last] = accuracy(result.model, "validation")
        print(f"{last:6} last: {as_last[last]:.1%} on validation images at {result.count.ratio:.2f}× one model")
    last = max(as_last, key=as_last.__getitem__)
    order = [name for name in models if name != last] + [last]
    chosen = [models[name] for name in order]

    held_out = [(images[split["validation"]], digits[split["validation"]])]
    frontier = pf.frontier(chosen, x[:2], evaluate=held_out, methods=METHODS, data=batches, names=order)
    print(f"\n{frontier}")
    print(f"\n{frontier.to_csv(out / 'frontier.csv')}")
    print(frontier.save_html(out / "frontier.html", title="Three specialists"))

    # The best fusion within the limit, by validation accuracy, is computed again and tested.
    fitting = [p for p in frontier.points if p.kind == "fused" and p.score is not None and p.ratio <= LIMIT]
    best = max(fitting, key=lambda point: point.score)
    size = {} if best.alpha is None else {"alpha": best.alpha}
    result = pf.fuse(chosen, x[:2], mix=best.mix, data=batches, **METHODS[best.method], **size)
    tested = {name: accuracy(model, "test") for name, model in {**models, "fused": result.model}.items()}
    print(f"\nchosen within {LIMIT}× one model: {best}")
    print("on the test images: " + ", ".join(f"{name} {score:.1%}" for name, score in tested.items()))
    return {"frontier": frontier, "as_last": as_last, "best": best, "result": result, "tested": tested}


if __name__ == "__main__":
    main()
