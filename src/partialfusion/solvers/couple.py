"""Couplings of two sets of channels of which a given fraction stays isolated, or whose blocks go together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.arrays import MASS_TOLERANCE, Bools, Floats, Ints
from ..kernels.coupling import Coupling
from .assignment import Matching, Prices, assignment, block_assignments, partial_assignments
from .transport import coupling, partial_coupling


def fused_count(n: int, alpha: float) -> int:
    """Channels of n that are fused when the fraction alpha is isolated."""
    return n - round(alpha * n)


MassPair = tuple[Floats, Floats]  # (n,) and (m,) positive masses of the channels of both sides, each of sum one


def couple(
    cost: Floats,
    alpha: float,
    *,
    masses: MassPair | None = None,
    split: bool = False,
    rest: bool = True,
    prices: Prices | None = None,
) -> Coupling:
    """The cheapest coupling that leaves the fraction `alpha` isolated.

    Equally many channels of equal masses on both sides: n − round(alpha·n) pairs are fused. Otherwise every channel
    carries its part of its side's mass, by default an equal one, and may be fused with several. Partial transport then
    leaves some channels fused in part; by default those of which most is coupled are fused wholly and the others
    isolated wholly, so that n and m channels become m + round(alpha·n). With `split` they stay as they are, for
    `merge` to split.

    Args:
        cost: (n × m) cost of fusing two channels.
        alpha: isolated fraction, 0 … 1.
        masses: masses of the channels of both sides; None for equal ones.
        split: keep channels that are fused in part.
        rest: pair the isolated channels as cheaply as possible too. Where only the fused pairs are needed, False saves
            this second solve: with equal widths, isolated channels are then paired in index order.
        prices: with equal widths and nothing isolated, where the solve begins, and where it leaves what the next one
            of a similar cost may begin with.
    """
    n, m = cost.shape
    if masses is None and n == m and fused_count(n, alpha) == n:
        return _paired(cost, assignment(cost, prices), rest)
    return couplings(cost, [alpha], masses=masses, split=split, rest=rest)[0]


def couplings(
    cost: Floats, alphas: Sequence[float], *, masses: MassPair | None = None, split: bool = False, rest: bool = True
) -> list[Coupling]:
    """What `couple` gives for each of several isolated fractions of one cost matrix.

    With equal widths and masses, the fused pairs of all fractions come from one run of `partial_assignments`; otherwise
    every fraction is solved by itself.

    Args:
        cost: (n × m) cost of fusing two channels.
        alphas: isolated fractions, each 0 … 1, in any order.
        masses: as for `couple`.
        split: as for `couple`.
        rest: as for `couple`.

    Returns:
        one coupling for every alpha.
    """
    n, m = cost.shape
    cost = np.asarray(cost, np.float64)
    if n != m or masses is not None:
        a, b = (np.full(n, 1 / n), np.full(m, 1 / m)) if masses is None else masses
        return [_transported(cost, a, b, alpha, split) for alpha in alphas]
    counts = [fused_count(n, alpha) for alpha in alphas]
    sizes = sorted(set(counts))
    found = {k: _paired(cost, fused, rest) for k, fused in zip(sizes, partial_assignments(cost, sizes), strict=True)}
    return [found[k] for k in counts]


def couple_blocks(
    costs: Sequence[Floats],
    blocks: Sequence[tuple[Ints, Ints]],
    alpha: float = 0.0,
    *,
    split: bool = False,
) -> list[Coupling]:
    """The cheapest couplings of several spaces whose blocks go together, such as queries and values of heads.

    The cost of fusing two blocks is that of the best matching of their channels, summed over the spaces; one coupling
    of the blocks, which leaves the fraction `alpha` of them isolated, then decides all of them.

    Args:
        costs: per space, (n × m) cost of fusing two channels.
        blocks: per space, (n,) and (m,) the block of each channel of both models, 0 … h − 1, each of equally many.
        alpha: isolated fraction of the blocks, 0 … 1.
        split: as for `couple`, where the models have unequally many blocks.
    """
    members = [(_members(ours), _members(theirs)) for ours, theirs in blocks]
    matched = [block_assignments(cost, *groups) for cost, groups in zip(costs, members, strict=True)]
    total = np.sum([cost for _, cost in matched], axis=0)
    chosen = couple(total, alpha, split=split)
    return [_expanded(chosen, *groups, inner) for groups, (inner, _) in zip(members, matched, strict=True)]


def _members(blocks: Ints) -> Ints:
    """(h × s) the channels of each block."""
    return np.argsort(blocks, kind="stable").reshape(int(blocks.max()) + 1, -1)


def _expanded(coupling: Coupling, ours: Ints, theirs: Ints, inner: Ints) -> Coupling:
    """The coupling of channels that a coupling of blocks means; `inner`: which channels of two blocks correspond."""
    size = ours.shape[1]
    rows, cols = coupling.rows, coupling.cols
    order = np.argsort(ours.reshape(-1), kind="stable"), np.argsort(theirs.reshape(-1), kind="stable")
    return Coupling(
        ours[rows].reshape(-1),
        np.take_along_axis(theirs[cols], inner[rows, cols], axis=1).reshape(-1),
        np.repeat(coupling.mass / size, size),
        np.repeat(coupling.fused, size),
        np.repeat(coupling.row_mass / size, size)[order[0]],
        np.repeat(coupling.col_mass / size, size)[order[1]],
    )


def _transported(cost: Floats, a: Floats, b: Floats, alpha: float, split: bool) -> Coupling:
    """The coupling of unequally many channels, or of unequal masses."""
    n, m = cost.shape
    fused = partial_coupling(cost, a, b, 1 - alpha)
    if split:
        left_a, left_b = np.maximum(a - fused.sum(1), 0), np.maximum(b - fused.sum(0), 0)
        return _joined(fused, _rest(cost, left_a, left_b), a, b)
    rows = _most_coupled(fused, a, cost, fused_count(n, alpha))
    cols = _most_coupled(fused.T, b, cost.T, fused_count(m, alpha))
    if not (rows.any() and cols.any()):
        rows[:], cols[:] = False, False
    taken = b * (a[rows].sum() / b[cols].sum()) if cols.any() else b
    whole = _rest(cost, np.where(rows, a, 0), np.where(cols, taken, 0))
    free = ~cols if not cols.all() else cols
    rest = _rest(cost, np.where(rows, 0, a), np.where(free, b, 0))
    return _joined(whole, rest, a, np.where(cols, taken, b))


def _paired(cost: Floats, matching: Matching, rest: bool) -> Coupling:
    """The coupling of equally many channels whose fused pairs are known; `rest`: pair the others by their cost."""
    rows, cols = matching
    n = len(cost)
    rest_rows, rest_cols = _others(rows, n), _others(cols, n)
    if rest and len(rest_rows):
        r, c = assignment(cost[np.ix_(rest_rows, rest_cols)])
        rest_rows, rest_cols = rest_rows[r], rest_cols[c]
    fused = np.arange(n) < len(rows)
    return Coupling.of_pairs(np.concatenate([rows, rest_rows]), np.concatenate([cols, rest_cols]), fused)


def _others(index: Ints, n: int) -> Ints:
    mask = np.ones(n, bool)
    mask[index] = False
    return np.flatnonzero(mask)


def _most_coupled(fused: Floats, masses: Floats, cost: Floats, k: int) -> Bools:
    """(n,) the k rows of whose mass the largest fraction is coupled; among equals those coupled more cheaply."""
    coupled = fused.sum(1)
    price = (fused * cost).sum(1) / np.maximum(coupled, MASS_TOLERANCE)
    chosen = np.zeros(len(masses), bool)
    chosen[np.lexsort((price, -np.round(coupled / masses, 9)))[:k]] = True
    return chosen


def _rest(cost: Floats, a: Floats, b: Floats) -> Floats:
    """The cheapest coupling of all of a, of which channels may be zero, with masses in proportion to b."""
    plan = np.zeros(cost.shape)
    rows, cols = np.flatnonzero(a > 0), np.flatnonzero(b > 0)
    if len(rows) and len(cols) and a.sum() > MASS_TOLERANCE:
        block = np.ix_(rows, cols)
        plan[block] = coupling(cost[block], a[rows], b[cols] * (a.sum() / b.sum()))
    return plan


def _joined(fused: Floats, rest: Floats, a: Floats, b: Floats) -> Coupling:
    parts = [(*_entries(plan), flag) for plan, flag in ((fused, True), (rest, False))]
    return Coupling(
        np.concatenate([r for r, *_ in parts]),
        np.concatenate([c for _, c, *_ in parts]),
        np.concatenate([mass for _, _, mass, _ in parts]),
        np.concatenate([np.full(len(r), flag) for r, *_, flag in parts]),
        a,
        b,
    )


def _entries(plan: Floats) -> tuple[Ints, Ints, Floats]:
    rows, cols = np.nonzero(plan > MASS_TOLERANCE / max(plan.shape))
    return rows, cols, plan[rows, cols]
