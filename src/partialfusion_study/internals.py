"""Internals of the library that the study needs and that have no public equivalent; all other imports are public."""

# Two plans that no method of the library gives: soft couplings, and channel i fused with channel i at any alpha. Timing
# needs the shapes of the latter, and matching the 16,000 channels of the widest networks would take far longer than the
# timing. `pf.fuse(method="average")` isolates no channels.
from partialfusion.core.inputs import Inputs as Inputs
from partialfusion.fusing.rounding import grids as grids
from partialfusion.kernels import Coupling as Coupling
from partialfusion.kernels import merge as merge
from partialfusion.surgery import apply as apply
