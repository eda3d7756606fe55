"""Random networks: `python -m fuzz.networks`, in the folder of the tests, fuses many and looks for wrong results.

A seed draws a program of layers on feature maps, with shortcuts, concatenations, norms, gates and attention between any
of them. Two networks of one program, with other weights, must give the exact ensemble at alpha=1, or an error that says
why not. A network fused with itself must stay itself by every method, whatever parts of it can only be averaged.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.errors import FusionError

Shape = tuple[int, int, int]
Run = Callable[..., Tensor]  # of the layers and the values that it reads
Part = tuple[list[nn.Module], Run, Shape] | None  # None where the layer does not fit the shapes

SIZE, CLASSES = 8, 5
EXACT, SAME = 1e-4, 1e-3  # relative differences that are rounding; refit and least squares round more
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "leaky": lambda x: F.leaky_relu(x, 0.2),
    "softplus": F.softplus,
    "none": lambda x: x,
}


# ---- layers: what each draws for a shape, or for two ----


def convolution(draw: Random, c: int, h: int, w: int) -> Part:
    wide, kernel, stride = draw.choice([4, 6, 8, 12]), draw.choice([1, 3]), draw.choice([1, 1, 2]) if h > 2 else 1
    layer = nn.Conv2d(c, wide, kernel, stride=stride, padding=kernel // 2, bias=draw.random() < 0.7)
    act = ACTIVATIONS[draw.choice([*ACTIVATIONS])]
    return [layer], lambda m, x: act(m[0](x)), (wide, (h - 1) // stride + 1, (w - 1) // stride + 1)


def grouped(draw: Random, c: int, h: int, w: int) -> Part:
    groups = draw.choice([2, c])
    if c % groups:
        return None
    layer = nn.Conv2d(c, c if groups == c else draw.choice([4, 8]), 3, padding=1, groups=groups)
    return [layer], lambda m, x: F.relu(m[0](x)), (layer.out_channels, h, w)


def transposed(draw: Random, c: int, h: int, w: int) -> Part:
    wide = draw.choice([4, 6])
    return (
        None if h > SIZE else ([nn.ConvTranspose2d(c, wide, 2, stride=2)], lambda m, x: m[0](x), (wide, 2 * h, 2 * w))
    )


def channels_last(draw: Random, c: int, h: int, w: int) -> Part:
    wide = draw.choice([4, 8])
    return [nn.Linear(c, wide)], lambda m, x: F.gelu(m[0](x.movedim(1, -1))).movedim(-1, 1), (wide, h, w)


def norm(draw: Random, c: int, h: int, w: int) -> Part:
    kinds = [nn.BatchNorm2d(c), nn.GroupNorm(1, c), nn.PReLU(c), *([nn.GroupNorm(2, c)] if c % 2 == 0 else [])]
    return [draw.choice(kinds)], lambda m, x: F.relu(m[0](x)), (c, h, w)


def layer_norm(draw: Random, c: int, h: int, w: int) -> Part:
    return [nn.LayerNorm(c)], lambda m, x: m[0](x.movedim(1, -1)).movedim(-1, 1), (c, h, w)


def squeeze(draw: Random, c: int, h: int, w: int) -> Part:
    layers = [nn.Conv2d(c, 3, 1), nn.Conv2d(3, c, 1)]
    return layers, lambda m, x: x * torch.sigmoid(m[1](F.relu(m[0](x.mean((2, 3), keepdim=True))))), (c, h, w)


def gate(draw: Random, c: int, h: int, w: int) -> Part:
    return [nn.Conv2d(c, 2 * c, 1)], lambda m, x: F.glu(m[0](x), 1), (c, h, w)


def growth(draw: Random, c: int, h: int, w: int) -> Part:
    wide = draw.choice([4, 6])
    layer = nn.Conv2d(c, wide, 3, padding=1)
    return None if c > 24 else ([layer], lambda m, x: torch.cat([x, F.relu(m[0](x))], 1), (c + wide, h, w))


def attention(draw: Random, c: int, h: int, w: int) -> Part:
    size, inner = draw.choice([2, 4]), draw.choice([4, 8])
    if h * w > SIZE * SIZE:
        return None

    def run(m: Sequence[nn.Module], x: Tensor) -> Tensor:
        tokens = x.flatten(2).mT
        q, k, v = m[0](tokens).unflatten(-1, (3, -1, size)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + m[1](mixed).mT.unflatten(-1, (h, w))

    return [nn.Linear(c, 3 * inner), nn.Linear(inner, c)], run, (c, h, w)


def positions(draw: Random, c: int, h: int, w: int) -> Part:
    return [nn.Linear(h * w, h * w)], lambda m, x: x + m[0](x.flatten(2)).unflatten(-1, (h, w)), (c, h, w)


def half(draw: Random, c: int, h: int, w: int) -> Part:
    which = draw.randrange(2)
    return None if c % 2 else ([], lambda m, x: x.chunk(2, 1)[which], (c // 2, h, w))


def exchange(draw: Random, c: int, h: int, w: int) -> Part:
    return None if c % 2 else ([], lambda m, x: torch.cat(x.chunk(2, 1)[::-1], 1), (c, h, w))


def shuffle(draw: Random, c: int, h: int, w: int) -> Part:
    return None if c % 2 else ([], lambda m, x: x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2), (c, h, w))


def moved(draw: Random, c: int, h: int, w: int) -> Part:
    """Operations that read no weight."""
    kinds: list[tuple[Run, Shape]] = [
        (lambda m, x: x * 0.7 + 0.1, (c, h, w)),
        (lambda m, x: x.flip(-1), (c, h, w)),
        (lambda m, x: torch.roll(x, (1, 1), (2, 3)), (c, h, w)),
        (lambda m, x: F.pad(x, (1, 1, 1, 1)), (c, h + 2, w + 2)),
    ]
    if h >= 4:
        kinds += [
            (lambda m, x: F.max_pool2d(x, 2), (c, h // 2, w // 2)),
            (lambda m, x: x[:, :, 1:-1, 1:-1], (c, h - 2, w - 2)),
        ]
    if h <= 4:
        kinds += [(lambda m, x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), (c, 2 * h, 2 * w))]
    run, shape = draw.choice(kinds)
    return [], run, shape


def met(draw: Random, one: Shape, other: Shape) -> Part:
    """Two values element by element, the second through a layer or as it is."""
    if one[1:] != other[1:]:
        return None
    combine = draw.choice([torch.add, torch.maximum, lambda x, y: x * torch.sigmoid(y), lambda x, y: x - 0.5 * y])
    if one[0] == other[0] and draw.random() < 0.4:
        return [], lambda m, x, y: combine(x, y), one
    return [nn.Conv2d(other[0], one[0], 1)], lambda m, x, y: combine(x, m[0](y)), one


def joined(draw: Random, one: Shape, other: Shape) -> Part:
    fits = one[1:] == other[1:] and one[0] + other[0] <= 40
    return ([], lambda m, x, y: torch.cat([x, y], 1), (one[0] + other[0], *one[1:])) if fits else None


LAYERS = [convolution, convolution, convolution, grouped, transposed, channels_last, norm, norm, layer_norm, squeeze]
LAYERS += [gate, growth, attention, positions, half, exchange, shuffle, moved, moved]
PAIRS = [met, met, joined]
HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean((2, 3)),
    "largest": lambda x: x.amax((2, 3)),
    "flat": lambda x: x.flatten(1),
}


class Network(nn.Module):
    """The network of a seed. Some of what it computes leads nowhere.

    Args:
        seed: of the program.
        start: of the weights.
    """

    def __init__(self, seed: int, start: int) -> None:
        super().__init__()
        draw, self.steps, self.parts = Random(seed), [], nn.ModuleList()
        torch.manual_seed(start)
        shapes: list[Shape] = [(3, SIZE, SIZE)]
        first = 0
        for number in range(draw.randint(4, 10)):
            i = draw.randrange(max(first, len(shapes) - 3), len(shapes))
            j = draw.randrange(first, len(shapes))
            if number == 0 and draw.random() < 0.85:  # otherwise hidden layers may meet the inputs, which fixes much
                read, part, first = (0,), convolution(draw, *shapes[0]), 1
            elif draw.random() < 0.2:
                read, part = (i, j), draw.choice(PAIRS)(draw, shapes[i], shapes[j])
            else:
                read, part = (i,), draw.choice(LAYERS)(draw, *shapes[i])
            if part is not None:
                layers, run, shape = part
                self.parts.append(nn.ModuleList(layers))
                self.steps.append((read, run))
                shapes.append(shape)
        self.head = HEADS[draw.choice([*HEADS])]
        self.last = nn.Linear(self.head(torch.zeros(1, *shapes[-1])).shape[1], CLASSES)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)):
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.normal_(0, 0.3)
                if isinstance(module, nn.BatchNorm2d):
                    module.running_mean.normal_(0, 0.3)
                    module.running_var.uniform_(0.5, 1.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for layers, (read, run) in zip(self.parts, self.steps, strict=True):
            values.append(run(layers, *(values[k] for k in read)))
        return self.last(self.head(values[-1]))


# ---- what must hold ----

SELF: dict[str, dict[str, Any]] = {
    "by weights": {"alpha": 0.0},
    "partly": {"alpha": 0.5},
    "by activations": {"alpha": 0.3, "data": True},
    "refitted": {"alpha": 0.3, "data": True, "refit": True},
    "interpolated": {"alpha": 0.3, "data": True, "method": "interpolate"},
    "rotated": {"alpha": 0.3, "data": True, "similarity": "rotation"},
    "clustered": {"alpha": 0.3, "data": True, "method": "cluster"},
}


def findings(seed: int, outcomes: Counter[str] | None = None) -> Iterator[str]:
    """What is wrong with fusions and prunings of the network of a seed; counts what they came to."""
    outcomes = Counter() if outcomes is None else outcomes
    one, other = Network(seed, 1), Network(seed, 2)
    x, fresh, *data = (
        torch.randn(n, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(n)) for n in (2, 3, 16, 17)
    )
    step = "trace"
    try:
        with torch.no_grad():
            blueprint = pf.trace(other, x)
            options: dict[str, Any] = {"blueprint": blueprint, "progress": False}
            step = "ensemble"
            try:
                yield from _unlike(
                    step, pf.fuse([one, other], x, alpha=1.0, **options).model, fresh, [one, other], EXACT
                )
                outcomes["the ensemble"] += 1
            except pf.ShortfallError:
                outcomes["not the ensemble, and says so"] += 1
            options["allow_shortfall"] = True
            for step, wanted in SELF.items():
                given = wanted | ({"data": data} if "data" in wanted else {})
                yield from _unlike(step, pf.fuse([other, other], x, **given, **options).model, fresh, [other], SAME)
            step = "in between"
            between = pf.fuse([one, other], x, alpha=0.4, data=data, **options)
            step = "blocks"
            yield from _unlike(step, pf.to_blocks(between, x), fresh, [between.model], EXACT)
            step = "pruned"
            for keep in (0.25, 0.5):
                pf.prune(other, x, keep=keep, **options).model(fresh)
            yield from _unlike(step, pf.prune(other, x, keep=1.0, **options).model, fresh, [other], EXACT)
    except FusionError as error:
        yield f"{step}: refused: {error}"
    except Exception as error:  # whatever it is, it is a finding
        yield f"{step}: {type(error).__name__}: {error}"


def _unlike(step: str, model: nn.Module, x: Tensor, wanted: Sequence[nn.Module], tolerance: float) -> Iterator[str]:
    """A finding where the outputs of a model are not the mean of those that are wanted."""
    expected = torch.stack([m(x) for m in wanted]).mean(0)
    apart = float((model(x) - expected).norm() / expected.norm())
    if not apart < tolerance:
        yield f"{step}: outputs differ by {apart:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz.networks", description=__doc__)
    parser.add_argument("--networks", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first one")
    options = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    outcomes: Counter[str] = Counter()
    found = 0
    for seed in range(options.first, options.first + options.networks):
        for finding in findings(seed, outcomes):
            found += 1
            print(f"network {seed}: {finding}", flush=True)
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"{options.networks} random networks at alpha=1: {told}; {found} findings")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
