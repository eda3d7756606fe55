"""Configured methods: the options of `fuse` and `prune` that an experiment varies, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

import partialfusion as pf
from partialfusion.core.literals import Align, Basis, Features, Importance, MethodName, NormRule, Site, Solver

from .data import DataName, normalised
from .samples import sample, test_sample

Drawn = Literal["train", "test"]


@dataclass(frozen=True)
class MethodConfig:
    """The options of `fuse` or `prune`, except the models and the size.

    Attributes:
        method: as in `fuse`.
        features: as in `fuse`.
        site: as in `fuse`.
        align: as in `fuse`.
        solver: the algorithm of "cluster".
        restarts: the number of restarts of that algorithm.
        by: what the magnitude methods measure importance by.
        images: the number of unlabelled training images, or passages of text, that are passed as data; 0 for none.
        refit: whether the layers are refitted on them.
        similarity: as in `fuse`.
        joint: whether directions are aligned jointly, which is what `align="fixed-point"` means for them; otherwise in
            one pass.
        norm: as in `fuse`; "auto" repairs no channels where there is no norm, see `norm_rule`.
        drawn_from: whether these images are training images or test images.
    """

    stored_as: ClassVar[str] = "Way"  # committed results are hashed under this name

    method: MethodName = "partial-ot"
    features: Features = "auto"
    site: Site = "auto"
    align: Align = "fixed-point"
    solver: Solver = "exchange"
    restarts: int | None = None
    by: Importance = "incoming"
    images: int = 0
    refit: bool = False
    similarity: Basis = field(default="auto", metadata={"added": True})
    joint: bool = field(default=False, metadata={"added": True})
    norm: NormRule = field(default="auto", metadata={"added": True})
    drawn_from: Drawn = field(default="train", metadata={"added": True})

    @property
    def alignment(self) -> Align:
        """As `align` in `fuse`."""
        return "greedy" if self.similarity == "rotation" and not self.joint else self.align

    def options(self, data: DataName, seed: int) -> dict[str, Any]:
        """Keyword arguments that `fuse` and `prune` share, for networks of images."""
        return self.options_with(batches(data, seed, self.images, self.drawn_from) if self.images else None)

    def options_with(self, data: Iterable[Tensor] | None) -> dict[str, Any]:
        """Keyword arguments that `fuse` and `prune` share, with these inputs as data."""
        return {
            "method": self._method(),
            "features": self.features,
            "site": self.site,
            "similarity": self.similarity,
            "data": data,
            "refit": self.refit,
            "progress": False,
        }

    def _method(self) -> MethodName | pf.Cluster | pf.Magnitude | pf.Zip:
        if self.method == "cluster":
            return pf.Cluster(self.solver, restarts=self.restarts, workers=1)
        if self.method in ("magnitude", "magnitude+ot"):
            return pf.Magnitude(self.by, transport=self.method == "magnitude+ot")
        return pf.Zip() if self.method == "zip" else self.method


def norm_rule(config: MethodConfig, blueprint: pf.Blueprint) -> NormRule:
    """Without a repair of channels that no norm follows, which the experiments are not about."""
    if config.norm != "auto":
        return config.norm
    return "recalibrate" if config.images and not blueprint.norms else "auto"


def batches(data: DataName, seed: int, count: int, drawn_from: Drawn = "train") -> Iterable[Tensor]:
    """Normalised images in batches."""
    drawn = sample if drawn_from == "train" else test_sample
    return list(normalised(drawn(data, seed, count).images).split(250))


IMAGES = 1000  # as in the paper
RESTARTS = 1000

PARTIAL_OT = MethodConfig("partial-ot", "weights")
RECALIBRATED = replace(PARTIAL_OT, images=IMAGES)  # matched by weights; norm statistics from the images
GREEDY = MethodConfig("partial-ot", "weights", align="greedy")
ACTIVATIONS = MethodConfig("partial-ot", "activations", align="greedy", images=IMAGES)
DISTANCES = replace(ACTIVATIONS, features="distances")  # the paper's cost
CLUSTER = MethodConfig("cluster", "activations", "pre", solver="stochastic-ward", restarts=RESTARTS, images=IMAGES)
CLUSTER_POST = replace(CLUSTER, site="post")  # for networks with ReLU
PRUNING = MethodConfig("magnitude")
PRUNING_OT = MethodConfig("magnitude+ot", images=IMAGES)
ZIP = MethodConfig("zip", images=IMAGES)
OURS = MethodConfig("cluster", images=IMAGES)
REFIT = replace(PARTIAL_OT, images=IMAGES, refit=True)
OURS_REFIT = replace(OURS, refit=True)
AVERAGE = MethodConfig("average")
