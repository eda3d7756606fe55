"""Types of the arrays that describe channels, and when two masses are equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Masses that differ by less than this fraction of a channel's mass are equal: network simplex leaves rounding errors.
MASS_TOLERANCE = 1e-9
