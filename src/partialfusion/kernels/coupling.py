"""Couplings: who is matched with whom, with how much mass, and which matches are fused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..core.arrays import MASS_TOLERANCE, Bools, Floats, Ints


@dataclass(frozen=True)
class Coupling:
    """A sparse coupling of the channels of one model (rows) with those of the last model (columns).

    Every row is coupled with all its mass; `fused` tells which entries merge channels. The entries that are not fused
    pair up what stays isolated: no weight is ever averaged over them, but they say which channels correspond.

    Attributes:
        rows, cols: (e,) channel indices of the entries.
        mass: (e,) positive masses.
        fused: (e,) whether the entry merges its two channels.
        row_mass, col_mass: (n,) and (m,) the masses of the channels.
    """

    rows: Ints
    cols: Ints
    mass: Floats
    fused: Bools
    row_mass: Floats
    col_mass: Floats

    @classmethod
    def of_pairs(cls, rows: Ints, cols: Ints, fused: Bools) -> Coupling:
        """One-to-one pairs over equally many channels on both sides, uniform masses. All arrays are (n,)."""
        n = len(rows)
        uniform = np.full(n, 1.0 / n)
        return cls(rows, cols, uniform, fused, uniform, uniform)

    @classmethod
    def identity(cls, n: int) -> Coupling:
        """Channel i fused with channel i."""
        index = np.arange(n)
        return cls.of_pairs(index, index, np.ones(n, bool))

    def isolated(self) -> Coupling:
        """The same correspondence with nothing fused."""
        return replace(self, fused=np.zeros(len(self.rows), bool))

    def whole(self) -> Coupling:
        """The same correspondence with everything fused."""
        return replace(self, fused=np.ones(len(self.rows), bool))

    def within(self, size: int) -> Coupling:
        """The same between groups of so many channels, one to one in their order."""
        rows, cols = ((index[:, None] * size + np.arange(size)).ravel() for index in (self.rows, self.cols))
        mass, row_mass, col_mass = (np.repeat(a / size, size) for a in (self.mass, self.row_mass, self.col_mass))
        return Coupling(rows, cols, mass, np.repeat(self.fused, size), row_mass, col_mass)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.row_mass), len(self.col_mass)

    def fused_part(self) -> tuple[Ints, Ints, Floats]:
        """Rows, columns and masses of the fused entries."""
        return self.rows[self.fused], self.cols[self.fused], self.mass[self.fused]

    def fused_fraction(self) -> tuple[Floats, Floats]:
        """The fraction of each row's and of each column's mass that is fused, cleaned of rounding errors."""
        rows, cols, mass = self.fused_part()
        n, m = self.shape
        return (
            _cleaned(np.bincount(rows, mass, n) / self.row_mass),
            _cleaned(np.bincount(cols, mass, m) / self.col_mass),
        )


def _cleaned(fraction: Floats) -> Floats:
    fraction[fraction < MASS_TOLERANCE] = 0.0
    fraction[fraction > 1.0 - MASS_TOLERANCE] = 1.0
    return fraction
