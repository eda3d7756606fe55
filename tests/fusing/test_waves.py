"""Spaces in groups: whoever depends on each other keeps the order, and only they."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from partialfusion.core.cluster import Here, OnDask
from partialfusion.features import weights
from partialfusion.fusing.align import Problem


@dataclass(frozen=True)
class Graph:
    """Stands for the objective: pairs of spaces that a weight joins."""

    joined: frozenset[tuple[str, str]]

    def bindings(self, space: str) -> list[tuple[str, str]]:
        return [(space, other) for pair in self.joined if space in pair for other in pair if other != space]

    def others(self, other: str) -> list[str]:
        return [other]


def problem(names: list[str], joined: set[tuple[str, str]], **more: Any) -> Problem:
    graph: Any = Graph(frozenset(joined))
    return Problem(graph, {}, dict.fromkeys(names, 0.0), dict.fromkeys(names, (2, 2)), **more)


@pytest.mark.parametrize("seed", range(20))
def test_neighbours_keep_their_order_and_are_never_in_one_group(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"s{k}" for k in range(12)]
    joined = {(a, b) for a in names for b in names if a < b and rng.random() < 0.2}
    found = problem(names, joined, bundles=[("s3", "s7")])
    waves = found.waves()
    assert sorted(step for wave in waves for step in wave) == sorted(found.steps())
    place = {s: k for k, wave in enumerate(waves) for step in wave for s in step}
    order = {s: k for k, step in enumerate(found.steps()) for s in step}
    for a, b in joined:
        assert np.sign(place[a] - place[b]) == np.sign(order[a] - order[b])


def test_a_stream_is_one_group_and_what_hangs_on_it_the_next() -> None:
    names = ["stream", *(f"mlp{k}" for k in range(5))]
    waves = problem(names, {("stream", name) for name in names[1:]}).waves()
    assert [len(wave) for wave in waves] == [1, 5]


def test_tasks_of_a_task_run_where_it_does() -> None:
    assert isinstance(pickle.loads(pickle.dumps(OnDask(client=object()))), Here)


def test_no_more_costs_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "ALL_KEPT", 100)
    kept = weights._Kept()
    term = weights._Term(np.zeros(2), np.zeros(5), (torch.zeros(2, 5),))  # of 40 bytes
    for k in range(5):
        kept.keep(("space", f"p{k % 4}", 0, "reads"), [], term)
    assert sorted(key[1] for key in kept) == ["p0", "p1"]
    assert kept.size == 80
    assert not pickle.loads(pickle.dumps(kept))
