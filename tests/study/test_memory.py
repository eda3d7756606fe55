"""Memory and files are measured right on networks whose tensors are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from partialfusion_study.cell import Cell
from partialfusion_study.cells import Memory, Merge, Parents, Stored
from partialfusion_study.cells.memory import kept, peak
from partialfusion_study.experiments.runs import measured
from partialfusion_study.experiments.settings import mnist_pairs
from partialfusion_study.methods import ACTIVATIONS, PARTIAL_OT
from partialfusion_study.report import Table

FLOAT = 4


def test_peak_is_what_two_layers_have_alive() -> None:
    """The second layer's output joins the first's, which is then gone; three layers have no more alive than two."""
    layers = [nn.Linear(8, 16, bias=False), nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)]
    x = torch.zeros(4, 8)
    for count in (2, 3):
        assert peak(lambda n=count: nn.Sequential(*layers[:n])(x)) == 2 * 4 * 16 * FLOAT


def test_kept_for_the_backward_pass_are_the_inputs_of_the_layers() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 2, bias=False)), torch.zeros(4, 8)
    given = {x.data_ptr(), *(p.data_ptr() for p in model.parameters())}
    assert kept(lambda: model(x), given) == 4 * 16 * FLOAT


def test_files_hold_the_effective_parameters_and_a_header() -> None:
    """At alpha=0.5 each of the two weights between hidden layers has 1.75 times the entries outside the zero blocks."""
    found, width = Stored(40).run(), 40
    outer, inner = 784 * width + 10 * width, 2 * width**2
    assert found["parameters"] == outer + inner
    assert found["effective"] == 1.5 * outer + 1.75 * inner
    assert 0 < found["single"] - FLOAT * found["parameters"] < 2**12
    assert 0 < found["fused"] - FLOAT * found["effective"] < 2**13


def test_parameters_are_those_of_the_forms() -> None:
    """At alpha=0.5 a layer between hidden ones has 2.25 times the weights, 1.75 outside the zero blocks."""
    found = Memory(20, batch=2).run()
    single, ensemble, dense, blocks = (found[name]["parameters"] for name in ("single", "ensemble", "dense", "blocks"))
    assert single == FLOAT * (784 * 20 + 2 * 20 * 20 + 20 * 10)
    assert ensemble == 2 * single
    assert dense == FLOAT * (784 * 30 + 2 * 30 * 30 + 30 * 10)
    assert blocks == dense - FLOAT * 2 * (2.25 - 1.75) * 20 * 20


def test_what_a_table_comes_from() -> None:
    a, b = mnist_pairs(True, "usual")[:2]
    cells = [Parents(a, (0.5,)), Merge(a, PARTIAL_OT, 0.0, 0.5), Merge(b, ACTIVATIONS, 0.0, 0.5)]

    def build(results: Callable[[Cell], Any]) -> Table:
        for cell in cells:
            results(cell)
        return Table("name", "Title", ("a",), ())

    told = measured(lambda cell: {}, build).measured
    assert told == "From 3 runs: 2 pairs of networks, 10,000 test images, 1,000 images as data."
