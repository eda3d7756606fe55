"""torchvision's models, built for tracing and for checks on numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# The wheel of torchvision registers kernels for these operators, which it only defines beside a torch with CUDA.
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if torch.version.cuda is None and not hasattr(torch.ops.torchvision, _name):
        _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision import models  # noqa: E402

NAMES: list[str] = models.list_models(module=models)

# Family → its smallest member, on which the checks on numbers run.
SMALLEST = {
    "alexnet": "alexnet",
    "convnext": "convnext_tiny",
    "densenet": "densenet121",
    "efficientnet_b": "efficientnet_b0",
    "efficientnet_v2": "efficientnet_v2_s",
    "googlenet": "googlenet",
    "inception": "inception_v3",
    "maxvit": "maxvit_t",
    "mnasnet": "mnasnet0_5",
    "mobilenet_v2": "mobilenet_v2",
    "mobilenet_v3": "mobilenet_v3_small",
    "regnet_x": "regnet_x_400mf",
    "regnet_y": "regnet_y_400mf",
    "resnet": "resnet18",
    "resnet50": "resnet50",
    "resnet101": "resnet50",
    "resnet152": "resnet50",
    "wide_resnet": "wide_resnet50_2",
    "resnext": "resnext50_32x4d",
    "shufflenet": "shufflenet_v2_x0_5",
    "squeezenet": "squeezenet1_1",
    "swin_v2": "swin_v2_t",
    "swin": "swin_t",
    "vgg": "vgg11",
    "vit": "vit_b_32",
}
BATCH_NORM_VGG = "vgg11_bn"

_Inverted = models.mobilenetv3.InvertedResidualConfig

# Families whose smallest member is deep or wide, with the same kinds of blocks in fewer layers and channels.
SHORT: dict[str, Callable[[], nn.Module]] = {
    "short densenet": lambda: models.DenseNet(8, (2, 2, 2), 16, num_classes=10),
    "short efficientnet": lambda: models.EfficientNet(
        [
            models.efficientnet.MBConvConfig(1, 3, 1, 32, 16, 1, 1.0, 1.0),
            models.efficientnet.MBConvConfig(6, 3, 2, 16, 24, 2, 1.0, 1.0),
            models.efficientnet.MBConvConfig(6, 5, 2, 24, 40, 1, 1.0, 1.0),
        ],
        0.2,
        num_classes=10,
    ),
    "short mobilenet_v2": lambda: models.MobileNetV2(10, 0.5, [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 1]]),
    "short mobilenet_v3": lambda: models.MobileNetV3(
        [
            _Inverted(16, 3, 16, 16, True, "RE", 2, 1, 1.0),
            _Inverted(16, 3, 72, 24, False, "RE", 2, 1, 1.0),
            _Inverted(24, 5, 96, 40, True, "HS", 2, 1, 1.0),
            _Inverted(40, 5, 120, 40, True, "HS", 1, 1, 1.0),
        ],
        128,
        num_classes=10,
    ),
    "short regnet_y": lambda: models.RegNet(
        models.regnet.BlockParams.from_init_params(depth=6, w_0=24, w_a=24.0, w_m=2.5, group_width=8, se_ratio=0.25),
        num_classes=10,
    ),
    "short resnet": lambda: models.ResNet(models.resnet.BasicBlock, [2, 1, 1, 1], num_classes=10),
    "short shufflenet": lambda: models.ShuffleNetV2([2, 3, 2], [24, 48, 96, 192, 256], num_classes=10),
    "short swin": lambda: models.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10),
    "short vit": lambda: models.VisionTransformer(64, 16, 2, 4, 48, 96, num_classes=10),
}

# Small enough to be checked in every run of the tests; `make catalogue` checks all families.
QUICK = [*(name for name in SHORT if not name.endswith(("swin", "vit"))), "squeezenet1_1"]


def representative(name: str) -> str:
    """The smallest model of a family."""
    if name.startswith("vgg") and name.endswith("_bn"):
        return BATCH_NORM_VGG
    return SMALLEST[max((family for family in SMALLEST if name.startswith(family)), key=len)]


def build(name: str) -> nn.Module:
    """A model in evaluation mode, without pretrained weights; without the heads that only training uses."""
    if name in SHORT:
        return SHORT[name]().eval()
    options: dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        options = {"init_weights": False, "aux_logits": False}
    if name.startswith("vit"):
        options["image_size"] = size(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return models.get_model(name, weights=None, **options).eval()


def on_meta(name: str) -> bool:
    """Transformers hold tables of indices, which tracing needs; the other models need no numbers."""
    return not name.removeprefix("short ").startswith(("vit", "swin", "maxvit"))


def needs_numbers(name: str) -> bool:
    """RegNets compute their widths with tensors, which must not be on the meta device."""
    return name.removeprefix("short ").startswith("regnet")


def size(name: str) -> int:
    """The edge of the images: small, but large enough for every stage."""
    if name.startswith(("maxvit", "vit_h")):
        return 224
    return 96 if name == "inception_v3" else 64


def images(name: str, count: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, size(name), size(name), generator=torch.Generator().manual_seed(seed))


def randomise(model: nn.Module, seed: int) -> nn.Module:
    """Random weights and biases; batch norms measure their statistics, as after training, and are then disturbed."""
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator).clamp_(-3, 3)

    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.copy_(noise(p) * (1.7 / p[0].numel()) ** 0.5)
            else:
                p.copy_(0.1 * noise(p) + (0.0 if name.endswith("bias") else 1.0))
        for m in norms:
            m.train()
            m.momentum = 1.0
        if norms:
            edge = 224 if isinstance(model, models.MaxVit) else 96
            model(torch.randn(8, 3, edge, edge, generator=generator))
        for m in norms:
            m.eval()
            m.momentum = 0.1
            m.running_mean += 0.1 * noise(m.running_mean) * m.running_var.sqrt()
            m.running_var *= 1 + 0.1 * noise(m.running_var)
    return model.eval()
