"""Model Folding (Wang et al., ICLR 2025), from a clone of nanguoyu/model-folding-universal."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from partialfusion_study.networks import VGG11, BasicBlock, ResNet18

from ..tasks import Case, Task
from .common import clone, recalibrated

UNUSED = ("hkmeans",)


@dataclass(frozen=True)
class ModelFolding:
    """Every layer folded by the same fraction; batch norms are then measured on the images, which it calls REPAIR.

    Its other REPAIR, for networks without batch norms, expects that all layers keep their widths: VGG-11 goes without.

    Attributes:
        name: what the table calls it.
        folder: the clone.
    """

    name: str
    folder: Path
    group: str = "Model Folding"

    def suits(self, task: Task) -> bool:
        return not task.merges

    def run(self, case: Case) -> nn.Module:
        network = case.models[0]
        with clone(self.folder, unused=UNUSED), TemporaryDirectory() as folder:
            from core.weight_clustering import weight_clustering

            path = Path(folder) / "network.json"
            path.write_text(json.dumps(_described(network)), encoding="utf-8")
            rate = 1.0 - (case.task.keep or 0.0)
            options: dict[str, Any] = {"pairing_rate": rate, "model_config_path": str(path), "verbose": False}
            model, _, _ = weight_clustering(copy.deepcopy(network), **options)
        return recalibrated(model, case.data)


def _described(network: nn.Module) -> dict[str, Any]:
    """The network in the form of the files in its folder `config`: what layers read, and which share a clustering."""
    layers = _resnet(network) if isinstance(network, ResNet18) else _vgg(network)
    found: dict[str, Any] = {"input": _entry(None, None)}
    for name, before, same in layers:
        found[name] = _entry(before, _width(network.get_submodule(name)), same)
    return found | {"final_module_name": list(found)[-1]}


def _entry(before: str | None, width: int | None, same: str | None = None) -> dict[str, Any]:
    return {"pre": before, "do_folding": width is not None, "num_channels": width, "consistent_map": same}


def _width(module: nn.Module) -> int | None:
    if isinstance(module, nn.Conv2d):
        return module.out_channels
    if isinstance(module, nn.BatchNorm2d):
        return module.num_features
    return module.out_features if isinstance(module, nn.Linear) else None


Layer = tuple[str, str, str | None]  # its name, the layer it reads, the layer whose clustering it shares


def _resnet(network: ResNet18) -> Iterator[Layer]:
    yield "conv1", "input", None
    yield "bn1", "conv1", None
    stream, before = "conv1", "bn1"
    for k, stage in enumerate(network.layers):
        assert isinstance(stage, nn.Sequential)
        for j, block in enumerate(stage):
            assert isinstance(block, BasicBlock)
            name = f"layers.{k}.{j}"
            projected = len(block.shortcut) > 0
            yield f"{name}.conv1", before, None
            yield f"{name}.bn1", f"{name}.conv1", None
            yield f"{name}.conv2", f"{name}.bn1", None if projected else stream
            yield f"{name}.bn2", f"{name}.conv2", None
            if projected:
                stream = f"{name}.conv2"
                yield f"{name}.shortcut.0", before, stream
                yield f"{name}.shortcut.1", f"{name}.shortcut.0", None
            before = f"{name}.bn2"
    yield "fc", before, None


def _vgg(network: nn.Module) -> Iterator[Layer]:
    assert isinstance(network, VGG11)
    before = "input"
    for k, layer in enumerate(network.features):
        if isinstance(layer, nn.Conv2d):
            yield f"features.{k}", before, None
            before = f"features.{k}"
    yield "classifier", before, None


def methods(folder: Path) -> tuple[ModelFolding, ...]:
    return (ModelFolding("Model Folding", folder),)
