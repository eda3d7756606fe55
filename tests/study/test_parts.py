"""What pages say about their figures: what they come from, which channels count, and how large a dense network is."""

from __future__ import annotations

from typing import Any

import pytest

from partialfusion_study.cell import Cell
from partialfusion_study.cells import Train
from partialfusion_study.experiments.capacity import make_grid
from partialfusion_study.experiments.main_result import dense, overview
from partialfusion_study.experiments.mlp_similarity import MLPS
from partialfusion_study.experiments.runs import Results, measured
from partialfusion_study.experiments.settings import mnist_pairs
from partialfusion_study.experiments.similarities import KINDS
from partialfusion_study.report import Table, Value


def test_a_part_says_what_it_comes_from_itself() -> None:
    grid = make_grid("usual", 25)
    one, other = grid.pairs[:2]

    def found(cell: Cell) -> dict[str, Any]:
        return {"accuracy": 90.0}

    def table(results: Results) -> Table:
        cells = [Train(one.a), *(grid.cell(pair, grid.methods["partial OT fusion"], 0.0, 0.5) for pair in (one, other))]
        return Table("t", "T", ("x",), ((Value.of(results(cell)["accuracy"] for cell in cells),),))

    def of_networks(results: Results) -> Table:
        return Table("t", "T", ("x",), ((Value.of(results(Train(r))["accuracy"] for r in (one.a, one.b)),),))

    part = measured(found, table)  # a training is no run
    assert (part.measured, part.over) == ("From 2 runs: 2 pairs of networks, 10,000 test images.", "pairs")
    assert measured(found, of_networks).over == "networks"


def test_dead_channels_are_left_out_and_told() -> None:
    numbers = {f"{what}_{kind}": [0.0, 1.0, 2.0] for what in ("nearest", "mean") for kind in KINDS}
    layer = numbers | {"nearest_within_a": [3.0, 1.0, 0.0], "nearest_within_b": [1.0, 1.0, 2.0], "width": 3}
    layer["nearest_b_to_a"] = [1.0, 1.0, 2.0]
    first, *others = MLPS.layers("usual", lambda _: {"layers": [layer]})
    assert len(others) == 4  # pairs
    (alive,) = first
    assert alive["nearest_within_a"] == [1.0]  # the first is at distance zero from one of B's
    assert alive["mean_a_to_b"] == [1.0]
    assert alive["nearest_b_to_a"] == [1.0, 1.0, 2.0]
    text = MLPS.text("usual", lambda _: {"layers": [layer]})
    assert "in layer 1, 10 of the 15 channels of A and 0 of those of B" in text


def test_the_dense_size_is_that_of_the_wider_network() -> None:
    grid = overview("usual")
    assert mnist_pairs(True, "usual")[0].b.width == 100
    assert dense(grid, 0.4) == pytest.approx((794 * 140 + 2 * 140**2) / (794 * 100 + 2 * 100**2))
