"""Configured methods: the options of `fuse` and `prune` that an experiment varies, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

import partialfusion as pf
from partialfusion.core.literals import Align, Basis, Features, Importance, Masses, MethodName, NormRule, Site, Solver

from .data import DataName, normalised
from .samples import sample, test_sample

Drawn = Literal["train", "test"]


@dataclass(frozen=True)
class MethodConfig:
    """The options of `fuse` or `prune`, except the models and the size.

    Attributes:
        method: as in `fuse`.
        features: as in `fuse`.
        site: as in `fuse`; "auto" of clusterings and magnitudes is before the activation function, see `site_rule`.
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
        masses: as in `fuse`.
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
    similarity: Basis | None = field(default=None, metadata={"added": True})
    joint: bool = field(default=False, metadata={"added": True})
    norm: NormRule = field(default="auto", metadata={"added": True})
    drawn_from: Drawn = field(default="train", metadata={"added": True})
    masses: Masses = field(default="equal", metadata={"added": True})

    @property
    def alignment(self) -> Align:
        """As `align` in `fuse`."""
        return "greedy" if self.similarity == "rotation" and not self.joint else self.align

    def data(self, name: DataName, seed: int) -> list[Tensor] | None:
        """The images that serve as data; None without any."""
        return batches(name, seed, self.images, self.drawn_from) if self.images else None

    def options(self, data: Sequence[Tensor] | None, blueprint: pf.Blueprint) -> dict[str, Any]:
        """Keyword arguments that `fuse` and `prune` share, with these inputs as data, for a network traced before."""
        return {
            "method": self._method(),
            "features": self.features,
            "site": site_rule(self, blueprint),
            "similarity": self.similarity,
            "data": data,
            "norm": norm_rule(self, blueprint),
            "refit": self.refit,
            "round_to": 1,
            "blueprint": blueprint,
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


def site_rule(config: MethodConfig, blueprint: pf.Blueprint) -> Site:
    """Clusterings and magnitudes look before the activation function where there is no batch norm, unless told.

    The library's own default is after it in networks with ReLU; experiments that are about that say so.
    """
    before = config.method in ("cluster", "magnitude", "magnitude+ot") and not blueprint.norms
    return "pre" if before and config.site == "auto" else config.site


def batches(data: DataName, seed: int, count: int, drawn_from: Drawn = "train") -> list[Tensor]:
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
OURS_POST = replace(OURS, site="post")  # for networks with ReLU and without batch norm
OURS_POST_REFIT = replace(OURS_POST, refit=True)
AVERAGE = MethodConfig("average")

CLUSTERING = "clustering"
EXCHANGE, EXCHANGE_REFIT = "clustering with exchange (ours)", "clustering with exchange, refitted (ours)"
AFTER_RELU = {CLUSTERING: CLUSTER_POST, EXCHANGE: OURS_POST, EXCHANGE_REFIT: OURS_POST_REFIT}  # label → in VGG-11
