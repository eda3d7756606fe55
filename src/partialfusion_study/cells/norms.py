"""Variances of batch norms in fused networks: what the data-free rule says, and what there is."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import partialfusion as pf

from ..methods import MethodConfig, batches
from ..recipes import Pair, Recipe
from ..training import device
from .pairs import merged


@dataclass(frozen=True)
class Variances:
    """Fuse a pair without data, and compare the variances of its batch norms with those of their inputs on images.

    Layer by layer: the median over the channels of the variance by the rule, relative to the variance of the fused
    network's own activations; for isolated and for fused channels, and in two networks: with all norms by the rule
    ("as_fused"), and with those before measured anew ("corrected").

    Attributes:
        pair: the networks.
        config: how they are fused.
        alpha: channels beyond those of one model, 0 to 1.
        images: the number of training images.
        seed: random seed of the images.
    """

    pair: Pair
    config: MethodConfig
    alpha: float
    images: int
    seed: int = 0

    @property
    def needs(self) -> tuple[Recipe, ...]:
        return self.pair.a, self.pair.b

    def run(self) -> dict[str, Any]:
        result = merged(self.pair, self.config, self.alpha, 0.5, seed=self.seed)
        x = torch.cat(list(batches(self.pair.data, self.seed, self.images))).to(device())
        isolated = _isolated(result)
        rows = []
        measured = {mode: _input_variances(result.model, x, mode == "corrected") for mode in ("as_fused", "corrected")}
        for name, module in result.model.named_modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_var is not None
                alone = isolated[f"{name}.running_var"]
                row: dict[str, Any] = {"norm": name, "isolated": int(alone.sum()), "fused": int((~alone).sum())}
                for mode, found in measured.items():
                    ratio = module.running_var.cpu() / found[name].cpu().clamp_min(1e-12)
                    for kind, chosen in (("isolated", alone), ("fused", ~alone)):
                        row[f"{mode}_{kind}"] = round(median(ratio[chosen].tolist()), 4) if chosen.any() else None
                rows.append(row)
        return {"norms": rows}


def _isolated(result: pf.Fusion) -> dict[str, Tensor]:
    """Variance → whether each of its channels has a single source."""
    found = {}
    for name, reduction in result.plan.items():
        sources = np.zeros(reduction.width, dtype=np.int64)
        for pair in reduction.pairs:
            np.add.at(sources, pair.target, 1)
        space = result.layout[name]
        for binding in space.bindings:
            if binding.parameter.endswith("running_var"):
                alone = torch.zeros(binding.index.size, dtype=torch.bool)
                alone[torch.from_numpy(binding.index[:, 0])] = torch.from_numpy(sources == 1)
                found[binding.parameter] = alone
    return found


@torch.no_grad()
def _input_variances(model: nn.Module, x: Tensor, corrected: bool) -> dict[str, Tensor]:
    """Batch norm → the variance of every channel that it reads; `corrected` normalises by the images themselves."""
    found: dict[str, Tensor] = {}

    def watch(name: str) -> Any:
        def before(module: nn.Module, inputs: tuple[Tensor]) -> None:
            found[name] = inputs[0].var((0, 2, 3))

        return before

    norms = {name: m for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    hooks = [m.register_forward_pre_hook(watch(name)) for name, m in norms.items()]
    stored = {name: {k: v.clone() for k, v in m.state_dict().items()} for name, m in norms.items()}
    for m in norms.values():
        m.train(corrected)
    model(x)
    for name, m in norms.items():
        m.eval()
        m.load_state_dict(stored[name])
    for hook in hooks:
        hook.remove()
    return found
