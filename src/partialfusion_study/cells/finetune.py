"""Networks trained on with a few labelled images: fused ones, and single ones made as wide."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

import partialfusion as pf

from ..recipes import Course, Pair, Training
from ..samples import sample, unseen
from ..trained import blueprint, example, trained
from ..training import accuracy, fit
from ..ways import Way
from .merge import merged

Start = Literal["fusion", "random", "net2net"]


@dataclass(frozen=True)
class FineTune:
    """Fine-tune a fused network, or model A widened to its size, and measure it before and after.

    Attributes:
        pair: the networks.
        start: "fusion" of the pair; model A with "random" channels added, or with copies of its own ("net2net").
        alpha: channels beyond one model's.
        share: of model B in the fusion; of no meaning to the others.
        way: how the pair is fused; of no meaning to the others.
        images: labelled images to train on, as many of each class.
        course: the steps; the last epoch counts.
        seed: of the draw of the images and of the widening.
        tested: only so many test images.
        noise: on the copies of "net2net", relative; it sets them apart, or they would stay copies for ever.
    """

    pair: Pair
    start: Start
    alpha: float
    share: float
    way: Way
    images: int
    course: Course
    seed: int
    tested: int | None = None
    noise: float = 0.01

    @property
    def needs(self) -> tuple[Training, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        test, few = unseen(self.pair.data, self.tested), sample(self.pair.data, self.seed, self.images)
        if self.start == "fusion":
            result = merged(self.pair, self.way, self.alpha, self.share, seed=self.seed)
            model = result.model
            pf.freeze_zeros(result)
        else:
            model = self._widened()
        before = accuracy(model, test)
        fit(model, few, self.course)
        return {"before": before, "after": accuracy(model, test)}

    def _widened(self) -> nn.Module:
        """Model A with as many channels as the fusion has."""
        source, plan = self.pair.a, blueprint(self.pair.a)
        widths = {s.name: s.width + round(self.alpha * s.width) for s in plan if s.kind == "elastic"}
        if self.alpha == 0:
            return copy.deepcopy(trained(source))
        model, x = trained(source), example(source)
        if self.start == "random":
            return pf.widen_random(model, x, widths, seed=self.seed, blueprint=plan)
        return pf.widen_net2net(model, x, widths, seed=self.seed, noise=self.noise, blueprint=plan)
