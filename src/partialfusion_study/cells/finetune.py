"""Fine-tuning with a few labelled images: fused networks, and single ones widened to the same size."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

import partialfusion as pf

from ..methods import MethodConfig
from ..recipes import Pair, Recipe, TrainingConfig
from ..samples import evaluation_images, sample
from ..trained import blueprint, example, trained
from ..training import accuracy, build, device, fit
from .pairs import merged

Start = Literal["fusion", "random", "net2net", "fresh"]


@dataclass(frozen=True)
class FineTune:
    """Fine-tune a fused network, or model A widened to its size, and evaluate it before and after.

    Attributes:
        pair: the networks.
        start: the "fusion" of the pair; model A with "random" channels added, or with copies of its own ("net2net"); or
            a network of that size that starts anew, with nothing of model A ("fresh").
        alpha: channels beyond those of one model, 0 to 1.
        share: the share of model B in the fusion; the other starts ignore it.
        config: how the pair is fused; the other starts ignore it.
        images: the number of labelled images to train on, the same number of each class.
        training: the hyperparameters; the network of the last epoch is evaluated.
        seed: random seed of the images and of the widening.
        tested: the number of test images; None for all.
        noise: relative noise on the copies of "net2net", without which they would stay equal during training.
    """

    pair: Pair
    start: Start
    alpha: float
    share: float
    config: MethodConfig = field(metadata={"stored_as": "way"})
    images: int
    training: TrainingConfig = field(metadata={"stored_as": "course"})
    seed: int
    tested: int | None = None
    noise: float = 0.01

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        test, few = evaluation_images(self.pair.data, self.tested), sample(self.pair.data, self.seed, self.images)
        if self.start == "fusion":
            result = merged(self.pair, self.config, self.alpha, self.share, seed=self.seed)
            model = result.model
            pf.freeze_zeros(result)
        else:
            model = self._widened()
        before = accuracy(model, test)
        fit(model, few, self.training)
        return {"before": before, "after": accuracy(model, test)}

    def _widened(self) -> nn.Module:
        """Model A with as many channels as the fusion has."""
        source = self.pair.a
        if self.start == "fresh":
            model = build(source).to(device()).eval()
            spaces = pf.trace(model, example(source))
        else:
            model, spaces = trained(source), blueprint(source)
        widths = {s.name: s.width + round(self.alpha * s.width) for s in spaces if s.kind == "elastic"}
        if self.alpha == 0:
            return copy.deepcopy(model)
        x = example(source)
        if self.start == "fresh":
            return started(pf.widen_random(model, x, widths, seed=self.seed, blueprint=spaces), self.seed)
        if self.start == "random":
            return pf.widen_random(model, x, widths, seed=self.seed, blueprint=spaces)
        return pf.widen_net2net(model, x, widths, seed=self.seed, noise=self.noise, blueprint=spaces)


def started(model: nn.Module, seed: int) -> nn.Module:
    """The model with all its layers at initial values, in place; the global random state is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in model.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return model
