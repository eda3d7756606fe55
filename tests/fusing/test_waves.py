"""Spaces in groups: whoever depends on each other keeps the order, and only they."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Barrier, get_ident
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core import cluster, compute
from partialfusion.core.cluster import Here, OnDask, Threads
from partialfusion.core.compute import moved
from partialfusion.features import weights
from partialfusion.fusing.align import Problem, alignment
from partialfusion.fusing.sources import Sources


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


@pytest.mark.parametrize("tasks", [OnDask(client=object()), Threads()])
def test_tasks_of_a_task_run_where_it_does(tasks: OnDask | Threads) -> None:
    assert isinstance(pickle.loads(pickle.dumps(tasks)), Here)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_threads_run_at_once_without_gradients_and_on_the_chosen_device() -> None:
    meeting = Barrier(2, timeout=30)  # passed only by two tasks at the same time

    def task(k: int) -> tuple[int, bool, str]:
        meeting.wait()
        return k, torch.is_grad_enabled(), moved(torch.zeros(1)).device.type

    token = compute._chosen.set(torch.device("meta"))
    try:
        found = list(Threads().run(task, [(k,) for k in range(4)]))
    finally:
        compute._chosen.reset(token)
    assert found == [(k, False, "meta") for k in range(4)]


@pytest.mark.usefixtures("two_threads")
def test_short_tasks_run_in_the_calling_thread() -> None:
    assert set(Threads().run(get_ident, [()] * 4, short=True)) == {get_ident()}


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_thread_ends_the_others() -> None:
    done = []

    def task(k: int) -> None:
        if k == 0:
            raise ValueError("no")
        done.append(k)
        sleep(0.05)

    with pytest.raises(ValueError, match="no"):
        list(Threads().run(task, [(k,) for k in range(100)]))
    assert len(done) < 50


class Blocks(nn.Module):
    """A stream with four blocks, whose hidden channels do not depend on each other."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(5, 20), nn.Linear(20, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 20)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("alpha", [0.0, 0.4])
@pytest.mark.parametrize("data", [None, [torch.randn(64, 5, generator=torch.Generator().manual_seed(3))]])
def test_the_result_is_the_same_in_threads(
    alpha: float, data: list[Tensor] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, x, ran = [Blocks(0).eval(), Blocks(1).eval()], torch.randn(2, 5), []
    without_gradients = cluster._without_gradients

    def noted(function: Any, *given: Any) -> Any:
        ran.append(get_ident())
        return without_gradients(function, *given)

    monkeypatch.setattr(cluster, "_without_gradients", noted)
    monkeypatch.setattr(alignment, "WIDE", 1)
    threads = pf.fuse(models, x, alpha=alpha, data=data, seed=0)
    assert ran
    assert get_ident() not in ran
    monkeypatch.setattr(Sources, "tasks", Here())
    one_by_one = pf.fuse(models, x, alpha=alpha, data=data, seed=0)
    for name, tensor in one_by_one.model.state_dict().items():
        assert torch.equal(tensor, threads.model.state_dict()[name]), name


def test_no_more_costs_are_kept_than_there_is_room_for() -> None:
    kept = weights._Kept(100)
    term = weights._Term(np.zeros(2), np.zeros(5), (torch.zeros(2, 5),))  # of 40 bytes
    for k in range(5):
        kept.keep(("space", f"p{k % 4}", 0, "reads"), [], term)
    assert sorted(key[1] for key in kept) == ["p0", "p1"]
    assert kept.size == 80
    again = pickle.loads(pickle.dumps(kept))
    assert (len(again), again.room) == (0, 100)
