"""The networks of the paper's experiments, and small transformers of our own."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(*widths: int, bias: bool = False) -> nn.Sequential:
    """Linear layers with GELU between them; the paper's is mlp(784, 100, 100, 100, 10)."""
    layers: list[nn.Module] = []
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m, bias=bias), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, n: int, m: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n, m, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(m)
        self.conv2 = nn.Conv2d(m, m, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(m)
        self.shortcut = nn.Sequential()
        if stride != 1 or n != m:
            self.shortcut = nn.Sequential(nn.Conv2d(n, m, 1, stride, bias=False), nn.BatchNorm2d(m))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for 32×32 images: (batch × 3 × 32 × 32) → (batch × classes); width 64 is the usual one."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        widths = [width, *(width << k for k in range(4))]
        self.layers = nn.ModuleList(
            nn.Sequential(BasicBlock(n, m, 1 if k == 0 else 2), BasicBlock(m, m, 1))
            for k, (n, m) in enumerate(pairwise(widths))
        )
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        for layer in self.layers:
            x = layer(x)
        return self.fc(x.mean((2, 3)))


class VGG11(nn.Module):
    """VGG-11 for 32×32 images, without biases and norms: (batch × 3 × 32 × 32) → (batch × classes)."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for factor, pooled in (
            (1, True),
            (2, True),
            (4, False),
            (4, True),
            (8, False),
            (8, True),
            (8, False),
            (8, True),
        ):
            layers += [nn.Conv2d(channels, factor * width, 3, padding=1, bias=False), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if pooled else []
            channels = factor * width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes, bias=False)
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class Attention(nn.Module):
    """Self-attention: (batch × tokens × width) → the same shape; causal: no token sees those after it."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.head_width = width // heads
        self.causal = causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._by_head(layer(x)) for layer in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:
        """(batch × tokens × channels) → (batch × heads × tokens × channels of a head)."""
        return x.unflatten(2, (-1, self.head_width)).transpose(1, 2)


class TransformerBlock(nn.Module):
    """Attention and two linear layers, each behind a layer norm and added to the residual stream."""

    def __init__(self, width: int, heads: int, *, ratio: int = 2, causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, ratio * width), nn.GELU(), nn.Linear(ratio * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A vision transformer: (batch × channels × size × size) → (batch × classes).

    Args:
        width: width of the residual stream.
        depth: number of blocks.
        heads: heads of each block.
        classes: number of classes.
        channels: channels of an image.
        size: height and width of an image.
        patch: height and width of a patch.
    """

    def __init__(
        self,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        classes: int = 10,
        *,
        channels: int = 1,
        size: int = 28,
        patch: int = 7,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


class GPT(nn.Module):
    """A language model of bytes: (batch × bytes) → the logits of the byte after each (batch × bytes × 256)."""

    def __init__(self, width: int = 128, *, depth: int = 4, heads: int = 4, context: int = 128) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, ratio=4, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        for embedding in (self.bytes, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.bytes(x) + self.positions(positions))))
