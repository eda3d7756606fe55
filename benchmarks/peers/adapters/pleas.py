"""PLeaS (Nasery et al., CVPR 2025) and its Git Re-Basin, from a clone of SewoongLab/PLeaS-Merging."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..tasks import SEED, Case, Task
from .common import clone, recalibrated

STEPS, BATCH = 400, 16  # of the authors' script


@dataclass(frozen=True)
class PLeaS:
    """Channels matched one to one, the best of them merged, and then the layers fitted by gradient descent.

    Attributes:
        name: what the table calls it.
        folder: the clone.
        activations: match by activations instead of weights.
        fitted: fit the layers; without that it is Git Re-Basin, or its partial form.
    """

    name: str
    folder: Path
    activations: bool
    fitted: bool
    group: str = "PLeaS"

    def suits(self, task: Task) -> bool:
        return task.key == "specialists" or (self.activations and task.key == "specialists-1.2")

    def run(self, case: Case) -> nn.Module:
        a, b = (copy.deepcopy(model) for model in case.models)
        images = torch.cat(case.data)
        with clone(self.folder):
            from pleas.core import compiler
            from pleas.methods.activation_matching import activation_matching
            from pleas.methods.partial_matching import partial_merge
            from pleas.methods.pleas_merging import train
            from pleas.methods.weight_matching import weight_matching

            handlers = compiler.PermutationProp.function_handlers
            handlers[torch.relu] = handlers[torch.sigmoid]  # the function is not in its table
            spec = compiler.get_permutation_spec(a, (tuple(case.example.shape),))
            if self.activations:
                # Its sum over batches keeps the last one only, so all images are one batch.
                perm, costs = activation_matching(spec, a, b, [(images, None)], 1, output_costs=True)
            else:
                states = a.state_dict(), b.state_dict()
                perm, costs = weight_matching(spec, *states, verbose=False, seed=SEED, return_costs=True)
                # Its costs are of the last permuted state, where what is matched stands on the diagonal.
                costs = {axis: cost[:, perm[axis].argsort()] for axis, cost in costs.items()}
            ratios = dict.fromkeys(spec, case.task.alpha)
            model = partial_merge(spec, a, b, perm, costs, ratios)
            if self.fitted:
                stream = _stream(images)
                fit: dict[str, Any] = {"num_classes": 10, "merging": "perm_gradmask", "model_type": "rn18"}
                model = train(stream, a, b, model, spec, perm, costs, ratios, False, STEPS, None, **fit)
        return recalibrated(_with_buffers(model), case.data)


def _with_buffers(model: nn.Module) -> nn.Module:
    """The merged network, in which statistics of batch norms are buffers again; PLeaS makes them parameters."""
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        for name in ("running_mean", "running_var"):
            value = getattr(norm, name).detach().clone()
            delattr(norm, name)
            norm.register_buffer(name, value)
    return model


def _stream(images: Tensor) -> Iterator[tuple[Tensor, None]]:
    """Batches of the images in random order, without end."""
    generator = torch.Generator().manual_seed(SEED)
    while True:
        for index in torch.randperm(len(images), generator=generator).split(BATCH):
            yield images[index], None


def methods(folder: Path) -> tuple[PLeaS, ...]:
    return (
        PLeaS("Git Re-Basin in PLeaS' code, by weights", folder, activations=False, fitted=False),
        PLeaS("Git Re-Basin in PLeaS' code, by activations", folder, activations=True, fitted=False),
        PLeaS("PLeaS, matched by weights", folder, activations=False, fitted=True),
        PLeaS("PLeaS, matched by activations", folder, activations=True, fitted=True),
    )
