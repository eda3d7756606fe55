"""A small zoo of networks with random weights, biases and batch-norm statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.inputs import Inputs
from partialfusion.core.modules import named_tensors
from partialfusion.core.plain import plain
from partialfusion.surgery import apply
from partialfusion.surgery.verify import reordered
from partialfusion_study.networks import BasicBlock


def mlp(width: int = 12, activation: type[nn.Module] = nn.GELU, bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, width, bias=bias),
        activation(),
        nn.Linear(width, width + 3, bias=bias),
        activation(),
        nn.Dropout(0.5),
        nn.Linear(width + 3, width, bias=bias),
        activation(),
        nn.Linear(width, 5, bias=bias),
    )


def vgg(width: int = 8, norm: bool = True) -> nn.Module:
    """Flattens with H·W > 1."""

    def block(n: int, m: int) -> list[nn.Module]:
        return [nn.Conv2d(n, m, 3, padding=1), *([nn.BatchNorm2d(m)] if norm else []), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *block(3, width),
        nn.MaxPool2d(2),
        *block(width, width * 2),
        *block(width * 2, width * 2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(width * 2 * 4, width * 3),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(width * 3, 5),
    )


class ResNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(torch.flatten(self.pool(self.layer2(self.layer1(x))), 1))


class PreActivation(nn.Module):
    """Batch norm before the convolution, on the sum of the residual stream."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.fc = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=False):
            x = x + conv(torch.relu(norm(x)))
        return self.fc(torch.relu(self.norms[2](x)).mean((2, 3)))


class Shared(nn.Module):
    """One linear layer used twice, and an activation with a parameter per channel."""

    def __init__(self, width: int = 9) -> None:
        super().__init__()
        self.first = nn.Linear(10, width)
        self.again = nn.Linear(width, width)
        self.act = nn.PReLU(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.last = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for _ in range(2):
            x = x + self.scale * self.act(self.again(x))
        return self.last(x)


class Mixer(nn.Module):
    """Concatenation, chunks, gates, a depthwise convolution and a channels-last flatten."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, width, 3, padding=1)
        self.b = nn.Conv2d(3, width * 2, 1)
        self.depth = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.join = nn.Conv2d(width * 2 + 3, width, 1)
        self.gate = nn.Linear(width, width)
        self.out = nn.Linear(width * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.b(x).chunk(2, 1)
        y = torch.cat([self.depth(torch.relu(self.a(x))), value * torch.sigmoid(gate), x], 1)
        y = nn.functional.silu(self.join(y))
        y = y * torch.sigmoid(self.gate(y.mean((2, 3))))[:, :, None, None]
        return self.out(y[:, :, ::2, ::2].permute(0, 2, 3, 1).flatten(1))


class Grouped(nn.Module):
    """A grouped convolution between ordinary ones, squeeze and excite after it; the group is the unit."""

    def __init__(self, groups: int = 4) -> None:
        super().__init__()
        width = groups * 3
        self.enter = nn.Sequential(nn.Conv2d(3, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.grouped = nn.Conv2d(width, groups * 2, 3, padding=1, groups=groups)
        self.norm = nn.BatchNorm2d(groups * 2)
        self.squeeze, self.excite = nn.Conv2d(groups * 2, 4, 1), nn.Conv2d(4, groups * 2, 1)
        self.leave = nn.Conv2d(groups * 2, 6, 1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.grouped(self.enter(x))))
        gate = torch.relu(self.squeeze(nn.functional.adaptive_avg_pool2d(x, 1)))
        x = self.leave(x * torch.sigmoid(self.excite(gate)))
        return self.fc(torch.relu(x).amax((2, 3)))


class Attention(nn.Module):
    """Packed queries, keys and values, a bias per head, cosine or dot products, written out."""

    def __init__(self, width: int, heads: int, cosine: bool) -> None:
        super().__init__()
        self.heads, self.cosine = heads, cosine
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.zeros(7, heads))
        self.scale = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        packed = self.qkv(x).reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = packed[0], packed[1], packed[2]
        if self.cosine:
            q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        index = (torch.arange(length)[:, None] - torch.arange(length)[None]) % 7
        bias = self.table[index.view(-1)].view(length, length, -1).permute(2, 0, 1)
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.scale + bias, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, length, width))


class Transformer(nn.Module):
    """Patches, a class token, positions; one block with nn.MultiheadAttention and two written out."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, 5, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.fused = nn.MultiheadAttention(width, 3, batch_first=True)
        self.written = nn.ModuleList([Attention(width, 4, cosine=False), Attention(width, 2, cosine=True)])
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.gamma = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        y = self.norms[0](x)
        x = x + self.fused(y, y, y, need_weights=False)[0]
        for norm, block in zip(self.norms[1:], self.written, strict=False):
            x = x + self.gamma * block(norm(x))
        x = x + self.mlp(self.norms[3](x))
        return self.head(self.norms[4](x)[:, 0])


class Tied(nn.Module):
    """One weight maps to the hidden channels and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, 10))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weight.T + self.bias) @ self.weight


class ThereAndBack(nn.Module):
    """One weight maps hidden channels to others and back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(10, 7), nn.Linear(7, 3)
        self.weight = nn.Parameter(torch.zeros(9, 7))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(torch.relu(self.first(x)) @ self.weight.T)
        return self.last(torch.relu(x @ self.weight))


@dataclass(frozen=True)
class Exhibit:
    """A network of the zoo: how to build it (at several widths) and inputs for it."""

    build: Callable[..., nn.Module]
    shape: tuple[int, ...]
    widths: tuple[int, int]

    def inputs(self, seed: int = 0) -> Tensor:
        return torch.randn(4, *self.shape, generator=torch.Generator().manual_seed(seed))

    def model(self, seed: int, width: int | None = None) -> nn.Module:
        return randomised(self.build(width or self.widths[0]), seed)

    @cached_property
    def blueprint(self) -> pf.Blueprint:
        """The blueprint of its models of the first width, traced once for all tests that are not about tracing."""
        return pf.trace(self.model(0), self.inputs())


ZOO = {
    "mlp": Exhibit(mlp, (10,), (12, 16)),
    "mlp-relu-no-bias": Exhibit(lambda w: mlp(w, nn.ReLU, bias=False), (10,), (12, 9)),
    "vgg": Exhibit(lambda w: vgg(w, norm=False), (3, 8, 8), (8, 6)),
    "vgg-bn": Exhibit(vgg, (3, 8, 8), (8, 12)),
    "resnet": Exhibit(ResNet, (3, 8, 8), (8, 10)),
    "pre-activation": Exhibit(PreActivation, (3, 8, 8), (8, 11)),
    "shared": Exhibit(Shared, (10,), (9, 7)),
    "mixer": Exhibit(Mixer, (3, 8, 8), (6, 8)),
    "grouped": Exhibit(Grouped, (3, 8, 8), (4, 5)),
}


# Networks with spaces that keep their width.
STIFF = {
    "transformer": Exhibit(Transformer, (3, 8, 8), (12, 12)),
}


def randomised(model: nn.Module, seed: int) -> nn.Module:
    """The model in evaluation mode with random parameters and plausible statistics."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in named_tensors(model).items():
            if not tensor.is_floating_point():
                continue
            if tensor.dim() > 1:
                fresh = torch.randn(tensor.shape, generator=generator) * (2 / tensor[0].numel()) ** 0.5
            elif "running_var" in name or not name.endswith(("bias", "running_mean")):
                fresh = torch.rand(tensor.shape, generator=generator) + 0.5
            else:
                fresh = torch.randn(tensor.shape, generator=generator) * 0.3
            tensor.copy_(fresh)
    return model.eval()


def permuted_twin(model: nn.Module, x: Tensor, seed: int = 0, blueprint: pf.Blueprint | None = None) -> nn.Module:
    """The same function with the channels of every space that is not rigid in another order."""
    model = plain(model)
    blueprint = blueprint or pf.trace(model, x)
    free = [s.name for s in blueprint if s.kind != "rigid"]
    plan = reordered(blueprint, free, np.random.default_rng(seed))
    return apply([model], [blueprint], plan, Inputs.of(x)).model


def error(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the largest entry of b."""
    return float((a - b).detach().abs().max() / b.detach().abs().max())


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def identical(state: dict[str, Tensor], model: nn.Module) -> bool:
    now = model.state_dict()
    return state.keys() == now.keys() and all(torch.equal(state[k], now[k]) for k in state)
