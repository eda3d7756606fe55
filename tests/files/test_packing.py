"""Packing against the rule entry by entry: an entry is stored if its positions have a model in common."""

from __future__ import annotations

import json
import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partialfusion.io.packing import Packing, from_record, to_record

SHAPES = st.lists(st.integers(0, 6), min_size=1, max_size=4)


def packing(seed: int, shape: list[int], models: int) -> Packing:
    """Random tables, sparse ones too, on some of the axes."""
    rng = np.random.default_rng(seed)
    density = rng.random()
    support = [rng.random((n, models)) < density if rng.random() < 0.7 else None for n in shape]
    return Packing(tuple(shape), (), tuple(support))


def mask(p: Packing, models: int) -> np.ndarray:
    """Entry by entry."""
    found = np.zeros(p.shape, bool)
    for entry in np.ndindex(p.shape):
        sets = [
            set(range(models)) if t is None else set(np.flatnonzero(t[i]))
            for t, i in zip(p.support, entry, strict=True)
        ]
        found[entry] = bool(set.intersection(*sets))
    return found


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shape=SHAPES, models=st.integers(1, 4))
def test_every_entry_once(seed: int, shape: list[int], models: int) -> None:
    p = packing(seed, shape, models)
    expected = mask(p, models)
    covered = np.zeros(p.shape, int)
    for box in p.boxes:
        covered[np.ix_(*box)] += 1
    assert np.array_equal(covered, expected.astype(int))
    assert p.stored_shape == (expected.sum(),)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shape=SHAPES, models=st.integers(1, 4))
def test_there_and_back(seed: int, shape: list[int], models: int) -> None:
    p = packing(seed, shape, models)
    tensor = torch.arange(1.0, math.prod(shape) + 1).reshape(shape)
    expected = tensor * torch.from_numpy(mask(p, models))
    stored = p.pack(tensor)
    assert torch.equal(stored.sort().values, expected[expected != 0])
    back = torch.full(shape, float("nan"))
    p.unpack(stored, back)
    assert torch.equal(back, expected)
    whole = Packing(p.shape)
    whole.unpack(whole.pack(tensor), back)
    assert torch.equal(back, tensor)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shape=SHAPES, models=st.integers(1, 20))
def test_records(seed: int, shape: list[int], models: int) -> None:
    p = Packing(tuple(shape), (0,), packing(seed, shape, models).support)
    packings = {"a": p, "b": p, "c": Packing((3, 2))}
    record = json.loads(json.dumps(to_record(packings)))
    back = from_record(record, models)
    assert back.keys() == packings.keys()
    for name, q in back.items():
        assert (q.shape, q.elastic) == (packings[name].shape, packings[name].elastic)
        for a, b in zip(q.support, packings[name].support, strict=True):
            assert (a is None and b is None) or np.array_equal(a, b)
    distinct = {t.tobytes() + bytes([len(t)]) for t in p.support if t is not None}
    assert len(record["tables"]) == len(distinct)


def test_two_models_with_ordered_channels_are_three_groups_of_rows() -> None:
    sets = np.array([[True, False]] * 2 + [[True, True]] * 3 + [[False, True]] * 2)
    p = Packing((7, 7, 3), (0, 1), (sets, sets, None))
    spans = [[(int(i[0]), int(i[-1])) for i in box] for box in p.boxes]
    assert spans == [[(0, 1), (0, 4), (0, 2)], [(2, 4), (0, 6), (0, 2)], [(5, 6), (2, 6), (0, 2)]]
    assert p.size == 3 * (2 * 5 + 3 * 7 + 2 * 5)
