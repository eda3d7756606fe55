"""Plans as plain values: back bit for bit, and never something else."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partialfusion.kernels import Coupling, KernelPair, Plan, Reduction, merge
from partialfusion.kernels.record import expanded, from_record, squeezed, to_record


def same_pair(a: KernelPair, b: KernelPair) -> bool:
    """Bit for bit; the second one must own arrays that may be written to."""
    arrays = [(a.target, b.target), (a.source, b.source), (a.write, b.write), (a.read, b.read)]
    return (a.targets, a.sources) == (b.targets, b.sources) and all(
        x.dtype == y.dtype and x.tobytes() == y.tobytes() and y.flags.writeable and y.flags.owndata for x, y in arrays
    )


def same_reduction(a: Reduction, b: Reduction) -> bool:
    return (
        (a.fused, a.isolated, a.sweeps, a.converged) == (b.fused, b.isolated, b.sweeps, b.converged)
        and np.float64(a.cost).tobytes() == np.float64(b.cost).tobytes()
        and all(same_pair(x, y) for x, y in zip((*a.pairs, *a.frames), (*b.pairs, *b.frames), strict=True))
    )


def same_plan(a: Plan, b: Plan) -> bool:
    return (
        list(a) == list(b)
        and (a.mix, a.convention) == (b.mix, b.convention)
        and all(same_reduction(a[name], b[name]) for name in a)
    )


def through_text(plan: Plan) -> Plan:
    return from_record(json.loads(json.dumps(to_record(plan))))


def coupling(rng: np.random.Generator, n: int, m: int) -> Coupling:
    """Random masses between n and m channels: every row and column is met, some entries are fused."""
    rows = np.concatenate([np.arange(n), rng.integers(n, size=m)])
    cols = np.concatenate([rng.integers(m, size=n), np.arange(m)])
    mass = rng.random(n + m) + 1e-3
    fused = rng.random(n + m) < 0.6
    return Coupling(rows, cols, mass, fused, np.bincount(rows, mass, n), np.bincount(cols, mass, m))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    widths=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    convention=st.sampled_from(["value", "mass"]),
    cost=st.floats(allow_nan=False),
)
def test_plans_come_back_bit_for_bit(seed: int, widths: list[int], convention: Any, cost: float) -> None:
    rng = np.random.default_rng(seed)
    mix = tuple(rng.dirichlet(np.ones(len(widths))).tolist())
    couplings = [coupling(rng, n, widths[-1]) for n in widths[:-1]]
    reduction = merge(couplings, mix, convention, cost=cost, sweeps=3, converged=False)
    plan = Plan({"a.b": reduction, "ä #2": merge(couplings, mix, convention)}, mix, convention)
    assert same_plan(plan, through_text(plan))


@pytest.mark.parametrize(("width", "kind"), [(255, "<u1"), (256, "<u2"), (65_535, "<u2"), (65_536, "<u4")])
def test_indices_take_the_smallest_integers(width: int, kind: str) -> None:
    pair = KernelPair.identity(width)
    plan = Plan({"a": Reduction((pair,), 0, (width,), (pair,))}, (1.0,))
    assert to_record(plan)["index"] == kind
    assert same_plan(plan, through_text(plan))


def test_values_of_numpy_are_values_of_json() -> None:
    pair = KernelPair.identity(3)
    odd = Reduction(
        (pair,),
        np.int64(0),
        (np.int64(3),),
        (pair,),
        np.float64(0.1),
        np.int64(2),
        np.bool_(True),  # type: ignore[arg-type]
    )
    back = through_text(Plan({"a": odd}, (1.0,)))["a"]
    assert (type(back.fused), type(back.cost), type(back.converged)) == (int, float, bool)
    assert back.cost == 0.1


def spoiled(change: Any) -> dict[str, Any]:
    pair = KernelPair.identity(3)
    record = copy.deepcopy(to_record(Plan({"a": Reduction((pair,), 0, (3,), (pair,))}, (1.0,))))
    change(record)
    return record


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop("mix"),
        lambda r: r.update(convention="other"),
        lambda r: r.update(index="<f4"),
        lambda r: r.update(arrays=r["arrays"][:-5]),
        lambda r: r.update(arrays=squeezed(b"")),
        lambda r: r.update(arrays=squeezed(expanded(r["arrays"]) + b"\0" * 18)),
        lambda r: r.update(arrays="\n"),
        lambda r: r["spaces"]["a"]["pairs"][0].__setitem__(1, 2),  # a target channel out of its width
        lambda r: r["spaces"]["a"]["pairs"][0].__setitem__(2, 2),
        lambda r: r["spaces"]["a"]["pairs"].append([0, 3, 3]),
        lambda r: r["spaces"]["a"].update(pairs=[[7, 3, 3]], world=[[-1, 3, 3]]),
        lambda r: r["spaces"]["a"].pop("world"),
        lambda r: r.update(mix=[0.5, 0.5]),
    ],
)
def test_what_is_no_plan_is_refused(change: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_record(spoiled(change))


def test_texts_come_back_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 40
    assert expanded(squeezed(data)) == data
    assert '"' not in squeezed(data)
    assert "\\" not in squeezed(data)
    monkeypatch.setattr("partialfusion.kernels.record.LARGEST", 1000)
    with pytest.raises(ValueError, match="longer than 1000"):
        expanded(squeezed(data))
