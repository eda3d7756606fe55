"""Optimal transport and partial optimal transport between general masses, by POT's network simplex."""

from __future__ import annotations

import numpy as np

from ..core.arrays import MASS_TOLERANCE, Floats
from ..errors import OptionError

MAX_ITERATIONS = 10_000_000


def coupling(cost: Floats, a: Floats, b: Floats) -> Floats:
    """The cheapest coupling of the masses a (n,) and b (m,), which have the same total, as (n × m)."""
    import ot  # here: it brings scikit-learn along, a third of the time that importing the whole library would take

    shifted = np.ascontiguousarray(cost) - cost.min()  # the same plan; negative costs can pass for infeasible
    plan, log = ot.emd(a, b, shifted, numItermax=MAX_ITERATIONS, log=True)
    if log["warning"] is not None:
        raise OptionError(f"optimal transport of shape {cost.shape} did not finish: {log['warning']}")
    return np.asarray(plan)


def partial_coupling(cost: Floats, a: Floats, b: Floats, mass: float) -> Floats:
    """The cheapest coupling of `mass` of the masses a (n,) and b (m,), as (n × m).

    A sink takes up what is left on either side at no cost, and nothing goes from sink to sink (the paper's
    equation for partial optimal transport, as one ordinary problem).
    """
    left_a, left_b = float(a.sum() - mass), float(b.sum() - mass)
    tolerance = MASS_TOLERANCE * float(a.sum())
    if mass < -tolerance or left_a < -tolerance or left_b < -tolerance:
        raise OptionError(f"cannot couple mass {mass} of the masses {a.sum()} and {b.sum()}")
    if mass <= tolerance:
        return np.zeros(cost.shape)
    n, m = cost.shape
    wide = np.zeros((n + 1, m + 1))
    wide[:n, :m] = cost
    wide[n, m] = 2 * np.abs(cost).max() + 1
    a, b = np.append(a, left_b), np.append(b, left_a)
    # the simplex fails on channels without mass
    rows, cols = np.flatnonzero(a > tolerance), np.flatnonzero(b > tolerance)
    plan = np.zeros(wide.shape)
    plan[np.ix_(rows, cols)] = coupling(wide[np.ix_(rows, cols)], a[rows], b[cols] * (a[rows].sum() / b[cols].sum()))
    return plan[:n, :m]
