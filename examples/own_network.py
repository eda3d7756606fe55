"""A network of your own: two specialists with a residual sum and batch norm, traced, and fused at several alphas.

There is nothing to register or declare: the library finds the channels by itself. The one rule for your code is not to
hard-code widths in forward: x.mean((2, 3)), not x.view(-1, 24).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import partialfusion as pf

ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
EPOCHS = 8


class Net(nn.Module):
    """(n × 1 × 8 × 8) → (n × 10)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.conv1 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(2 * width)
        self.conv2 = nn.Conv2d(2 * width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        x = F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))
        return self.head(x.mean((2, 3)))


def load() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Images (n × 1 × 8 × 8), their digits (n,), and the indices of each split."""
    raw = load_digits()
    images, digits = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 16, torch.tensor(raw.target)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    return images, digits, {"test": order[:400], "validation": order[400:700], "train": order[700:]}


def train(images: Tensor, digits: Tensor, specialty: list[int], seed: int) -> Net:
    """A specialist: it sees all images of its specialty and a tenth of the others."""
    torch.manual_seed(seed)
    seen = torch.isin(digits, torch.tensor(specialty)) | (torch.rand(len(digits)) < 0.1)
    images, digits = images[seen], digits[seen]
    net = Net()
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(digits)).split(32):
            optimiser.zero_grad()
            F.cross_entropy(net(images[batch]), digits[batch]).backward()
            optimiser.step()
    return net.eval()


def main() -> dict[str, object]:
    images, digits, split = load()
    x, y = images[split["train"]], digits[split["train"]]
    models = [train(x, y, [0, 1, 2, 3, 4], seed=0), train(x, y, [5, 6, 7, 8, 9], seed=1)]

    def ensemble(batch: Tensor) -> Tensor:
        return (models[0](batch) + models[1](batch)) / 2

    @torch.no_grad()
    def accuracy(model: Callable[[Tensor], Tensor], name: str) -> float:
        return float((model(images[split[name]]).argmax(1) == digits[split[name]]).float().mean())

    blueprint = pf.trace(models[-1], x[:2])
    print(blueprint)  # the residual sum ties `stem` and `conv2`: they write one space

    print("\non the validation images")
    for name, model in (("model A", models[0]), ("model B", models[1]), ("ensemble", ensemble)):
        print(f"{name:16}  {accuracy(model, 'validation'):6.1%}")
    fused = {a: pf.fuse(models, x[:2], alpha=a, data=x.split(100), blueprint=blueprint) for a in ALPHAS}
    scores = {a: accuracy(result.model, "validation") for a, result in fused.items()}
    for alpha, result in fused.items():
        print(f"fused, alpha {alpha:3}  {scores[alpha]:6.1%}   {result.count.ratio:.2f}× one model")
    with torch.no_grad():
        gap = float((fused[1.0].model(x) - ensemble(x)).abs().max())
    print(f"alpha 1 is the ensemble: the logits differ by at most {gap:.1g}")

    # The smallest network within one point of the ensemble on the validation images is the one that is tested.
    chosen = min(alpha for alpha in ALPHAS if scores[alpha] >= scores[1.0] - 0.01)
    tested = accuracy(fused[chosen].model, "test")
    print(f"chosen: alpha {chosen}, {tested:.1%} on the test images; the ensemble {accuracy(ensemble, 'test'):.1%}")
    return {"fused": fused, "gap": gap, "blueprint": blueprint, "scores": scores, "chosen": chosen, "tested": tested}


if __name__ == "__main__":
    main()
