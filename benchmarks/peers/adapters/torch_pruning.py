"""Torch-Pruning (Fang et al., CVPR 2023), from PyPI: channels are removed, with all that depends on them."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

from ..tasks import Case, Task
from .common import recalibrated


@dataclass(frozen=True)
class TorchPruning:
    """Every layer pruned by the same fraction, except the classifier; batch norms are measured on the images.

    Attributes:
        name: what the table calls it.
        importance: the class of the package that ranks the channels.
    """

    name: str
    importance: str
    group: str = "Torch-Pruning"

    def suits(self, task: Task) -> bool:
        return not task.merges

    def run(self, case: Case) -> nn.Module:
        import torch_pruning as tp

        model = copy.deepcopy(case.models[0])
        *_, classifier = (m for m in model.modules() if isinstance(m, nn.Linear))
        pruner = tp.pruner.MagnitudePruner(
            model,
            case.example,
            importance=getattr(tp.importance, self.importance)(),
            pruning_ratio=1.0 - (case.task.keep or 0.0),
            ignored_layers=[classifier],
        )
        pruner.step()
        return recalibrated(model, case.data)


METHODS = (
    TorchPruning("Torch-Pruning, norms of groups", "GroupMagnitudeImportance"),
    TorchPruning("Torch-Pruning, geometric median", "FPGMImportance"),
)
