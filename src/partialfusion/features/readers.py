"""What the weights that read a space see of it: the second moments that interpolation works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..blueprint import AxisBinding, Space
from ..core.arrays import Bools, Floats
from .moments import Moments

BACKGROUND = 1e-4  # what noise counts beside the data
# Of what is read of a channel on average: below this fraction it is rounding. In single precision the tail of a GELU is
# off by 1e-7 of its input, so of a channel of less than 1e-8 more than TOLERANCE of `union` would be.
SILENT = 1e-8
SAME = 1e-5  # of the mean squares of two channels: a difference below this fraction is rounding
SCARCE = 10  # samples for each channel at which the ridge is twice as strong, below it grows by the square


@dataclass(frozen=True, eq=False)
class Reader:
    """One weight that reads the channels of the union in a space.

    Attributes:
        weight: its name.
        second: (n × n) second moments of what it reads, averaged over uses and slots.
        mean: (n × slots) means.
        norms: (n,) norm of the entries that read each channel.
        samples: samples, positions and slots that the moments are averages of.
        unseen: (n × n) covariances to go by in what the data does not show, on the scale at which they count; 0 for
            none.
        same: (n × n) which channels are computed alike; told by nothing else where neither data nor noise shows them.
    """

    weight: str
    second: Floats
    mean: Floats
    norms: Floats
    samples: int
    unseen: Floats | float = 0.0
    same: Bools | None = None

    def gram(self, *, centred: bool) -> Floats:
        """(n × n) what is to be explained: second moments, or covariances where a constant costs nothing.

        A channel that is silent on data and noise resembles those that are computed alike, and no others.
        """
        seen = self.second - self.mean @ self.mean.T / self.mean.shape[1] if centred else self.second
        found = seen + self.unseen
        read = self.norms**2 * found.diagonal()
        silent = np.flatnonzero(read <= SILENT * read.mean())
        if self.same is not None and len(silent):
            size = SILENT * found.diagonal().mean()
            found[silent], found[:, silent] = 0.0, 0.0
            found[np.ix_(silent, silent)] = self.same[np.ix_(silent, silent)] * (size if size > 0 else 1.0)
        return found

    def ridge(self, strength: float) -> float:
        """A ridge of this strength; stronger where there are few samples for each channel."""
        return strength * (1 + (SCARCE * len(self.norms) / self.samples) ** 2)


def dense_bindings(space: Space) -> list[AxisBinding]:
    """The axes that read a space, where all of them may read any combination of its channels.

    A tied weight cannot: it is an embedding at the same time. A space that one reads has none.
    """
    reading = [b for b in space.bindings if b.role == "reads"]
    written = {(b.parameter, b.axis) for b in space.bindings if b.role != "reads"}
    return reading if all(b.dim is not None and (b.parameter, b.axis) not in written for b in reading) else []


def measured(places: Sequence[Moments]) -> tuple[Floats, Floats, int]:
    """Second moments and means of what one weight reads in all its uses, and the number of samples."""
    second, mean = np.zeros(()), np.zeros(())
    for m in places:
        means = np.concatenate([m.mean(k).cpu().numpy() for k in range(m.models)])
        second = second + m.union_covariance().cpu().numpy() + means @ means.T / means.shape[1]
        mean = mean + means
    samples = sum(m.count * m.sums[0].shape[1] for m in places)
    return second / len(places), mean / len(places), samples


def background(places: Sequence[Moments], seen: Floats) -> Floats | float:
    """(n × n) covariances of noise on a scale at which they count little beside what is seen.

    On data, channels may be silent, or alike by chance where there are few samples. Noise tells them apart, so that a
    channel is read from its duplicate wherever there is one, and not only on the data.
    """
    if not places:
        return 0.0
    covariance = np.sum([m.union_covariance().cpu().numpy() for m in places], axis=0)
    size = float(np.trace(covariance))
    if not (np.isfinite(size) and size > 0):
        return 0.0
    return BACKGROUND * float(np.trace(seen)) / size * covariance


def computed_alike(places: Sequence[Moments]) -> Bools:
    """(n × n) whether two channels of the union are the same at every place."""
    found = []
    for m in places:
        power = m.union_power()
        alike = m.union_squared_distances() <= SAME * (power[:, None] + power[None, :]) / 2
        found.append(alike.cpu().numpy())
    return np.all(found, axis=0)


def pooled(readers: Sequence[Reader], centred: Mapping[str, bool]) -> tuple[Floats, Floats]:
    """(n × n) moments and (n,) weights that stand for all readers of a space, each counting the same."""
    grams = [r.gram(centred=centred[r.weight]) for r in readers]
    gram, squares = np.zeros_like(grams[0]), np.zeros(len(grams[0]))
    for reader, own in zip(readers, grams, strict=True):
        size = own.diagonal().mean()
        lost = float(reader.norms**2 @ own.diagonal())
        if size > 0 and lost > 0:
            gram += own / size
            squares += reader.norms**2 * size / lost
    return gram, np.sqrt(squares)
