"""Networks for the commands to work on, and functions to call the commands with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from partialfusion import cli

NETS = """
from torch import nn


def mlp(width):
    return nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 3))


def small():
    return mlp(8)


def large():
    return mlp(12)


def chatty():
    print("building …")
    return mlp(8)


def slow():
    import pathlib, time

    pathlib.Path("started").touch()
    time.sleep(300)


def conv():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 3)
    )


class Tags(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        states = self.hidden(x).relu()
        return {"tags": self.head(states), "states": states}


def score(model, scale=1.0):
    return -scale * float(sum(p.detach().abs().mean() for p in model.parameters()))


def broken(model):
    raise RuntimeError("no luck")


def leaves(model):
    raise SystemExit(3)


def words(model):
    return "good"


number = 3


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.hidden(self.embed(tokens)).relu().mean(1))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 8), nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x, y):
        return self.head((self.left(x) + self.right(y)).relu())
"""
MODULE = "nets_for_cli_tests"
SMALL, LARGE, CONV = f"{MODULE}:small", f"{MODULE}:large", f"{MODULE}:conv"


def run(*args: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in args])


def fails(result: Result, *messages: str, code: int = 1) -> None:
    """One line on stderr that says what is wrong, nothing on stdout."""
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.strip().splitlines()) == 1
    for message in messages:
        assert message in result.stderr


def same_state(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in expected)
