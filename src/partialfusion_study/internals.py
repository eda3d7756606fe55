"""Internals of the library that the study needs and that have no public equivalent; all other imports are public."""

# Soft couplings, which no method of the library gives, as kernel pairs; and
# a fusion of channel i with channel i at any alpha: timing needs its shapes, and a matching of the 16,000 channels of
# the widest networks would take far longer than the timing. `pf.fuse(method="average")` isolates no channels.
from partialfusion.core.inputs import Inputs as Inputs
from partialfusion.fusing.rounding import grids as grids
from partialfusion.kernels import Coupling as Coupling
from partialfusion.kernels import merge as merge
from partialfusion.surgery import apply as apply
