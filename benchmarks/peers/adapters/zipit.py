"""ZipIt! (Stoica et al., ICLR 2024), from a clone of gstoica27/ZipIt: correlated features become one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partialfusion_study.networks import ResNet18

from ..tasks import Case, Task
from .common import clone, recalibrated


class PooledResNet(nn.Module):
    """The same network with its pooling as a module, where ZipIt looks at the last features."""

    def __init__(self, network: ResNet18) -> None:
        super().__init__()
        self.conv1, self.bn1, self.layers, self.fc = network.conv1, network.bn1, network.layers, network.fc
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        for layer in self.layers:
            x = layer(x)
        return self.fc(self.avgpool(x).flatten(1))


@dataclass(frozen=True)
class ZipIt:
    """All layers zipped, with the authors' settings of the two hyperparameters, and batch norms measured on the images.

    Attributes:
        name: what the table calls it.
        folder: the clone.
        a, b: the hyperparameters α and β.
    """

    name: str
    folder: Path
    a: float
    b: float
    group: str = "ZipIt!"

    def suits(self, task: Task) -> bool:
        return task.key == "specialists"

    def run(self, case: Case) -> nn.Module:
        networks = [PooledResNet(copy.deepcopy(model)) for model in case.models]  # type: ignore[arg-type]
        with clone(self.folder, unused=("clip", "einops", "torchvision", "timm")):
            from graphs.base_graph import NodeType
            from graphs.resnet_graph import ResNetGraph
            from model_merger import ModelMerge

            graphs = [_graph(network, ResNetGraph, NodeType) for network in networks]
            merger = ModelMerge(*graphs, device="cpu")
            images = tuple((batch, None) for batch in case.data)  # a list would be one of several data sets
            merger.transform(copy.deepcopy(networks[0]), images, a=self.a, b=self.b)
            model = merger.merged_model
            merger.clear_hooks()
        return recalibrated(model, case.data)


def _graph(network: PooledResNet, kind: Any, node: Any) -> Any:
    """The network as ZipIt describes it: features are zipped before every convolution but the first of a block."""
    graph = kind(network, head_name="fc")
    last = graph.create_node(node_type=node.INPUT)
    last = graph.add_nodes_from_sequence("", ["conv1", "bn1"], last, sep="")
    for k in range(len(network.layers)):
        last = graph.add_layer_nodes(f"layers.{k}", last)
    graph.add_nodes_from_sequence("", [node.PREFIX, "avgpool", "fc", node.OUTPUT], last, sep="")
    return graph


def methods(folder: Path) -> tuple[ZipIt, ...]:
    return (
        ZipIt("ZipIt!, the defaults of its code (α = 0.3, β = 0.125)", folder, 0.3, 0.125),
        ZipIt("ZipIt!, the setting of its CIFAR script (α = 0.0001, β = 0.075)", folder, 0.0001, 0.075),
    )
