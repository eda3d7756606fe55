"""Directions: orthonormal frames of several spaces that correspond as well as rotations allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.arrays import Floats, Ints

SWEEPS = 50  # of generalised Procrustes analysis, at most
RANK = 1e-6  # a singular value below this part of the largest is rounding
GAIN = 1e-9  # relative gain of a sweep that ends it

Cross = Callable[[int, int], Floats]  # two models → (n × m) covariances of their channels


@dataclass(frozen=True, eq=False)
class Frames:
    """One orthonormal frame for each model, the last one's being the reference.

    Attributes:
        rotations: per model, (width × width) with its directions as columns; the i-th directions of all models
            correspond.
        differences: per model but the last, (smaller width,) the mean squared differences of its directions from the
            last model's, relative to the mean size of both: what fusing them costs. 0 where they agree, and 1 on
            average where they have nothing in common.
    """

    rotations: tuple[Floats, ...]
    differences: tuple[Floats, ...]


def procrustes(cross: Floats) -> Floats:
    """(n × m) the orthogonal map nearest to a matrix: of all that preserve lengths, the one with the largest inner
    product. It maps the row model's channels to the column model's.

    Where the matrix says nothing, since its rank is too small, channels stay as near to themselves as they can.
    """
    u, s, vt = np.linalg.svd(cross, full_matrices=False)
    clear = s > RANK * s[0]
    if clear.all() or cross.shape[0] != cross.shape[1]:
        return np.asarray(u @ vt)
    left, right = u[:, ~clear], vt[~clear].T
    a, _, bt = np.linalg.svd(left.T @ right)
    return np.asarray(u[:, clear] @ vt[clear] + left @ a @ bt @ right.T)


def phases(cross: Floats, pairs: Ints) -> Floats:
    """(n × n) the same of all maps that turn given pairs of channels, each in its plane by an angle of its own.

    Args:
        cross: (n × n) the matrix.
        pairs: (n / 2 × 2) the channels of every plane.
    """
    first, second = pairs.T
    along = cross[first, first] + cross[second, second]
    around = cross[first, second] - cross[second, first]
    angle = np.arctan2(around, along)
    found = np.zeros_like(cross)
    found[first, first] = found[second, second] = np.cos(angle)
    found[first, second], found[second, first] = np.sin(angle), -np.sin(angle)
    return found


def within_head(cross: Floats, pairs: Ints | None) -> Floats:
    """(n × n) the rotation with the largest inner product with a matrix, within pairs of channels if there are any."""
    return procrustes(cross) if pairs is None else phases(cross, pairs)


def most_alike(towards: Floats, pairs: Ints | None) -> Floats:
    """(…) the largest inner product that a rotation of each head can have with what is wanted.

    Args:
        towards: (… × n × n) what is wanted.
        pairs: (n / 2 × 2) the channels that may be rotated with each other, if not all may be.
    """
    if pairs is None:
        return np.asarray(np.linalg.svd(towards, compute_uv=False).sum(-1))
    first, second = pairs.T
    along = towards[..., first, first] + towards[..., second, second]
    around = towards[..., first, second] - towards[..., second, first]
    return np.asarray(np.hypot(along, around).sum(-1))


def similarity(cross: Floats, ours: float, theirs: float, pairs: Ints | None = None) -> float:
    """How well two spaces correspond under the best rotation, 0 … 1: the sum of the singular values of their
    covariance, relative to their sizes (the sums of their variances). With pairs, under the best turns within them."""
    size = np.sqrt(max(ours, 0.0) * max(theirs, 0.0))
    if not size > 0:
        return 0.0
    most = np.linalg.svd(cross, compute_uv=False) if pairs is None else phases(cross, pairs) * cross
    return float(most.sum() / size)


def directions(cross: Cross, widths: Sequence[int]) -> Frames:
    """Frames in which the directions of all models correspond best, in the order of what they have in common.

    For two models these are the singular vectors of their cross-covariance. More models are first rotated into the last
    one's channels and then, one after the other, to where they fit all others best (generalised Procrustes analysis):
    whatever two models one compares, the i-th directions are the same pair.

    Args:
        cross: two models → (n × m) covariances of their channels.
        widths: channels of each model.
    """
    last = len(widths) - 1
    if last == 0:
        return Frames((_principal(cross(0, 0)),), ())
    stacked = np.concatenate([cross(m, last) for m in range(last)])
    if len(set(widths)) == 1 and last > 1:
        aligned = generalised(cross, len(widths), widths[0])
        pairs = [(i, j) for i in range(last) for j in range(i + 1, last + 1)]
        common = np.sum([aligned[i].T @ cross(i, j) @ aligned[j] for i, j in pairs], axis=0)
        basis = np.linalg.eigh(common + common.T)[1][:, ::-1]
        rotations = [frame @ basis for frame in aligned]
    else:
        basis = np.linalg.svd(stacked, full_matrices=True)[2].T
        rotations = [*(_towards(cross(m, last), basis) for m in range(last)), basis]
    return _compared(cross, rotations)


def alike_first(cross: Cross, rotation: Floats) -> Frames:
    """Frames of two models of which it is known how the first is rotated into the channels of the second.

    The directions are the eigenvectors of the covariance of the models' differences, those that differ least first:
    however many are fused, no other orthonormal directions of the rotated models differ less in sum.

    Args:
        cross: two models → (n × n) covariances of their channels.
        rotation: (n × n) it.
    """
    shared = rotation.T @ cross(0, 1)
    apart = rotation.T @ cross(0, 0) @ rotation + cross(1, 1) - shared - shared.T
    basis = np.linalg.eigh(apart)[1]
    return _compared(cross, [rotation @ basis, basis])


def _compared(cross: Cross, rotations: Sequence[Floats]) -> Frames:
    found = tuple(np.ascontiguousarray(r) for r in rotations)
    last = len(found) - 1
    return Frames(found, tuple(_differences(cross, found, m, last) for m in range(last)))


def _principal(covariance: Floats) -> Floats:
    """The principal directions of one model, the largest first."""
    return np.ascontiguousarray(np.linalg.eigh(covariance)[1][:, ::-1])


def _towards(cross: Floats, basis: Floats) -> Floats:
    """(n × n) the directions of a model that correspond to those of the last one, and then any others."""
    if cross.shape[0] == cross.shape[1]:
        return procrustes(cross) @ basis
    paired = procrustes(cross @ basis[:, : min(cross.shape)])
    rest = np.linalg.svd(paired, full_matrices=True)[0][:, paired.shape[1] :]
    return np.concatenate([paired, rest], 1)


def generalised(cross: Cross, models: int, width: int, pairs: Ints | None = None) -> list[Floats]:
    """Rotations that bring all models into one frame, the last model's to begin with; the objective only grows.

    Args:
        cross: two models → (n × n) covariances of their channels.
        models: how many models there are.
        width: channels of each, n.
        pairs: (n / 2 × 2) the channels that may be rotated with each other, if not all may be.
    """
    last = models - 1
    found = [within_head(cross(m, last), pairs) for m in range(last)] + [np.eye(width)]
    before = -np.inf
    for _ in range(SWEEPS):
        total = 0.0
        for m in range(models):
            towards = sum(cross(m, j) @ found[j] for j in range(models) if j != m)
            found[m] = within_head(np.asarray(towards), pairs)
            total += float((found[m] * towards).sum())
        if total <= before + GAIN * abs(before):
            break
        before = total
    return found


def _differences(cross: Cross, frames: Sequence[Floats], m: int, last: int) -> Floats:
    n = min(len(frames[m]), len(frames[last]))
    ours, theirs = frames[m][:, :n], frames[last][:, :n]
    shared = ((cross(m, last) @ theirs) * ours).sum(0)
    sizes = sum(((cross(k, k) @ frame) * frame).sum(0) for k, frame in ((m, ours), (last, theirs)))
    mean = float(np.mean(sizes))
    return np.maximum(sizes - 2 * shared, 0.0) / mean if mean > 0 else np.zeros(n)
