"""Two ResNet-18 of torchvision, specialists on different digits, fused into 1.3 times the size of one.

The budget limits the size of the result. The data, unlabelled training images, serves to compare channels and to
recalibrate the batch norms. Nothing is chosen here, so every held-out image is a test image; if you choose something (a
budget, a mix, a method), keep validation images apart for it, as own_network.py does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torchvision.models import resnet18

import partialfusion as pf

BUDGET = 1.3  # times the parameters of one model
SPECIALTIES = {"A": [0, 1, 2, 3, 4], "B": [5, 6, 7, 8, 9]}  # the digits each one knows well
EPOCHS, BATCH = 3, 32


def load() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Images (n × 3 × 32 × 32), their digits (n,), and the indices of each split."""
    raw = load_digits()
    small, digits = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 16, torch.tensor(raw.target)
    images = F.interpolate(small, size=(32, 32), mode="bilinear").expand(-1, 3, -1, -1)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    return images, digits, {"test": order[:400], "train": order[700:]}


def train(images: Tensor, digits: Tensor, specialty: list[int], seed: int) -> nn.Module:
    """A specialist: it sees all images of its specialty and a tenth of the others."""
    torch.manual_seed(seed)
    seen = torch.isin(digits, torch.tensor(specialty)) | (torch.rand(len(digits)) < 0.1)
    images, digits = images[seen], digits[seen]
    net = resnet18(num_classes=10)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    steps = EPOCHS * (len(digits) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(digits)).split(BATCH)[: steps // EPOCHS]:  # full batches only
            optimiser.zero_grad()
            F.cross_entropy(net(images[batch]), digits[batch]).backward()
            optimiser.step()
            schedule.step()
    return net.eval()


def main() -> dict[str, object]:
    images, digits, split = load()
    x, y = images[split["train"]], digits[split["train"]]
    models = [train(x, y, known, seed) for seed, known in enumerate(SPECIALTIES.values())]

    batches = x[:256].split(64)
    result = pf.fuse(models, x[:2], budget=BUDGET, data=batches)
    print(result.summary())  # every space has its own fraction of isolated channels

    single, held_out = result.count.single, images[split["test"]]
    sizes = {"model A": single, "model B": single, "ensemble": 2 * single, "fused": result.count.dense}
    with torch.no_grad():
        a, b = (model(held_out) for model in models)
        logits = {"model A": a, "model B": b, "ensemble": (a + b) / 2, "fused": result.model(held_out)}
    accuracy = {name: float((z.argmax(1) == digits[split["test"]]).float().mean()) for name, z in logits.items()}
    print(f"\n{'network':10} {'parameters':>12} {'ratio':>6} {'test':>7}")
    for name, size in sizes.items():
        print(f"{name:10} {size:12,} {size / single:6.2f} {accuracy[name]:7.1%}")
    return {"result": result, "accuracy": accuracy, "sizes": sizes}


if __name__ == "__main__":
    main()
