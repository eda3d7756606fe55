"""Two modules count as the same code only where nothing but the numbers in their tensors can differ."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partialfusion.core.same_code import same_code


class Net(nn.Module):
    def __init__(self, **held: object) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 6), nn.LeakyReLU(0.1), nn.BatchNorm1d(6))
        self.register_buffer("table", torch.randn(3))
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


class Slope(float):
    """A number with something to it."""


class Named(dict[str, int]):
    """A mapping with something to it."""


@dataclass
class Settings:
    name: str = "x"
    slope: float = field(default=0.1, compare=False)


class Equal:
    """Says that it is equal to anything."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


def with_slope(held: Any, slope: float) -> Any:
    held.slope = slope
    return held


def doubled(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return 2 * output


def test_only_numbers_and_the_mode_differ() -> None:
    shared = {"heads": 4, "scale": 0.5, "name": "x", "sizes": (1, [2, 3]), "options": {"eps": 1e-5}, "act": F.relu}
    a, b = Net(**shared).eval(), Net(**copy.deepcopy(shared))
    assert same_code(a, b)
    assert same_code(a, copy.deepcopy(a))
    partial = functools.partial(F.leaky_relu, negative_slope=0.2)
    assert same_code(Net(f=partial), Net(f=functools.partial(F.leaky_relu, negative_slope=0.2)))
    assert same_code(Net(mask=torch.ones(3)), Net(mask=torch.ones(3)))
    assert same_code(Net(f=Settings()), Net(f=Settings()))
    assert same_code(Net(f=with_slope(Named(a=1), 0.1)), Net(f=with_slope(Named(a=1), 0.1)))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"heads": 4}, {"heads": 8}),
        ({"heads": 4}, {"heads": 4.0}),
        ({"f": Settings(slope=0.1)}, {"f": Settings(slope=0.9)}),
        ({"f": Equal(0.1)}, {"f": Equal(0.9)}),
        ({"f": with_slope(Slope(1), 0.1)}, {"f": with_slope(Slope(1), 0.9)}),
        ({"f": with_slope(Named(a=1), 0.1)}, {"f": with_slope(Named(a=1), 0.9)}),
        ({"heads": 4}, {}),
        ({"sizes": (1, [2, 3])}, {"sizes": (1, [2, 4])}),
        ({"options": {"eps": 1e-5}}, {"options": {"eps": 1e-6}}),
        ({"scale": float("nan")}, {"scale": float("nan") * 2}),
        ({"act": F.relu}, {"act": F.gelu}),
        ({"act": lambda x: x}, {"act": lambda x: x}),
        ({"mask": torch.ones(3)}, {"mask": torch.zeros(3)}),
        ({"anything": object()}, {"anything": object()}),
        ({"f": functools.partial(F.elu, alpha=1)}, {"f": functools.partial(F.elu, alpha=2)}),
        ({"forward": lambda x: x}, {}),
    ],
)
def test_settings_differ(first: dict[str, object], second: dict[str, object]) -> None:
    assert not same_code(Net(**first), Net(**second))


def _hook(net: Net) -> None:
    net.a.register_forward_hook(doubled)


def _slope(net: Net) -> None:
    net.b[1].negative_slope = 0.2


def _other_class(net: Net) -> None:
    net.b[1] = nn.ReLU()


def _wider(net: Net) -> None:
    net.a = nn.Linear(4, 7)


def _half(net: Net) -> None:
    net.a.half()


def _tied(net: Net) -> None:
    net.b[0].bias = net.a.bias


def _replaced(net: Net) -> None:
    net.b[2].bias = None


@pytest.mark.parametrize("change", [_hook, _slope, _other_class, _wider, _half, _tied, _replaced])
def test_modules_differ(change: Callable[[Net], None]) -> None:
    a, b = Net(), Net()
    change(b)
    assert not same_code(a, b)
