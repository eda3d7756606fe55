"""Small networks whose spaces may be rotated, or may not, and twins of them that were rotated by hand."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, CLASSES = 12, 2, 5


class RMS(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight


class Block(nn.Module):
    def __init__(self, width: int, norm: type[nn.Module], bias: bool, post: bool) -> None:
        super().__init__()
        self.norm1, self.norm2, self.post = norm(width), norm(width), post
        self.q, self.k, self.v = (nn.Linear(width, WIDTH, bias=bias) for _ in range(3))
        self.o = nn.Linear(WIDTH, width)
        self.up, self.down = nn.Linear(width, 20, bias=bias), nn.Linear(20, width)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.down(F.gelu(self.up(x))))
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


# Kind of transformer → its norm, whether what reads the norms has a bias, and whether norms stand behind the sums.
KINDS: dict[str, tuple[type[nn.Module], bool, bool]] = {
    "layer norm": (nn.LayerNorm, True, False),
    "RMS norm": (RMS, False, False),
    "no biases": (nn.LayerNorm, False, False),
    "post-norm": (nn.LayerNorm, True, True),
}


class Transformer(nn.Module):
    """Tokens of 7 numbers; the classes are read from their mean."""

    def __init__(self, seed: int = 0, kind: str = "layer norm", width: int = WIDTH) -> None:
        super().__init__()
        self.kind = kind
        norm, bias, post = KINDS[kind]
        self.embed = nn.Linear(7, width)
        self.place = nn.Parameter(torch.zeros(4, width))
        self.blocks = nn.Sequential(*(Block(width, norm, bias, post) for _ in range(2)))
        self.norm = norm(width)
        self.head = nn.Linear(width, CLASSES, bias=bias)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                drawn = torch.randn(p.shape, generator=generator)
                scale = 0.5 if p.dim() == 1 else p.shape[-1] ** -0.5
                p.copy_(scale * drawn + (1.0 if "norm" in name and name.endswith("weight") else 0.0))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(x) + self.place)).mean(1))


class Bottleneck(nn.Module):
    """Two linear layers in a row, between others with activation functions."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.enter, self.first, self.second, self.leave = (
            nn.Linear(6, 16),
            nn.Linear(16, 8),
            nn.Linear(8, 16),
            nn.Linear(16, 3),
        )
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(F.relu(self.second(self.first(F.relu(self.enter(x))))))


class Constant(nn.Module):
    """A linear bottleneck that varies in few directions, with a large bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.first, self.second, self.leave = (
            nn.Linear(6, 4),
            nn.Linear(4, 16),
            nn.Linear(16, 12),
            nn.Linear(12, 3),
        )
        with torch.no_grad():
            self.first.bias.add_(2 * torch.randn(16))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(F.relu(self.second(self.first(F.relu(self.enter(x))))))


def samples(count: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(count, 4, 7, generator=torch.Generator().manual_seed(seed))


def orthogonal(n: int, seed: int) -> Tensor:
    drawn = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(drawn)[0]


def keeping_the_mean(n: int, seed: int) -> Tensor:
    """A rotation of the vectors that sum to zero among themselves."""
    first = torch.cat([torch.ones(n, 1, dtype=torch.float64), torch.eye(n, dtype=torch.float64)[:, 1:]], 1)
    basis = torch.linalg.qr(first)[0]
    inner = torch.eye(n, dtype=torch.float64)
    inner[1:, 1:] = orthogonal(n - 1, seed)
    return basis @ inner @ basis.T


def heads_reversed(model: Transformer) -> Transformer:
    """The same function with the heads of every layer in the other order."""
    twin = copy.deepcopy(model)
    order = torch.arange(WIDTH).view(HEADS, -1).flip(0).flatten()
    for block in twin.blocks:
        for layer in (block.q, block.k, block.v):
            layer.weight.data = layer.weight.data[order]
            if layer.bias is not None:
                layer.bias.data = layer.bias.data[order]
        block.o.weight.data = block.o.weight.data[:, order]
    return twin


def rotated_by_hand(model: Transformer, seed: int = 0) -> Transformer:
    """The same function with a rotated stream and rotated heads, written down weight by weight."""
    twin = copy.deepcopy(model).double()
    width = twin.embed.out_features
    centred = isinstance(twin.norm, nn.LayerNorm)
    turn = keeping_the_mean(width, seed) if centred else orthogonal(width, seed)
    mean = torch.eye(width, dtype=torch.float64) - (1 / width if centred else 0)
    into = turn.T @ mean

    def fold(norm: nn.Module, *layers: nn.Linear) -> None:
        for layer in layers:
            if getattr(norm, "bias", None) is not None:
                layer.bias.data += layer.weight.data @ norm.bias.data
            layer.weight.data = layer.weight.data * norm.weight.data @ turn
        norm.weight.data.fill_(1)
        if getattr(norm, "bias", None) is not None:
            norm.bias.data.zero_()

    def write(layer: nn.Linear) -> None:
        layer.weight.data, layer.bias.data = into @ layer.weight.data, into @ layer.bias.data

    write(twin.embed)
    twin.place.data = twin.place.data @ into.T
    for number, block in enumerate(twin.blocks):
        fold(block.norm1, block.q, block.k, block.v)
        fold(block.norm2, block.up)
        write(block.o)
        write(block.down)
        for head in range(HEADS):
            rows = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
            qk, v = (orthogonal(WIDTH // HEADS, 100 + 10 * number + 2 * head + k) for k in range(2))
            for layer, inner in ((block.q, qk), (block.k, qk), (block.v, v)):
                layer.weight.data[rows] = inner.T @ layer.weight.data[rows]
                if layer.bias is not None:
                    layer.bias.data[rows] = inner.T @ layer.bias.data[rows]
            block.o.weight.data[:, rows] = block.o.weight.data[:, rows] @ v
    fold(twin.norm, twin.head)
    return twin.float()
