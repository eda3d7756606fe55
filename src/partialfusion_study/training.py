"""Training: the study's networks from their recipes, and any other classifier of such images."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import Images, normalised
from .networks import VGG11, ResNet18, ViT, mlp
from .recipes import Recipe, TrainingConfig
from .resuming import Resumable
from .samples import CLASSES, sample

log = logging.getLogger(__name__)

Scheduler = torch.optim.lr_scheduler.LRScheduler
VALIDATION = 2500  # held-out images on which an epoch is selected


def device() -> str:
    """The device on which networks are trained and evaluated."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def build(recipe: Recipe) -> nn.Module:
    """The network with its initial weights; the global random state is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.start)
        if recipe.network == "mlp":
            return nn.Sequential(nn.Flatten(), *mlp(784, *[recipe.width] * 3, CLASSES))
        if recipe.network == "vit" and recipe.subset.data == "cifar10":
            return ViT(recipe.width, max(1, recipe.width // 16), channels=3, size=32, patch=4)
        return {"vgg11": VGG11, "resnet18": ResNet18, "vit": ViT}[recipe.network](recipe.width)


def train(recipe: Recipe, images: Images, resumable: Resumable | None = None) -> nn.Module:
    """The network of a recipe, trained on the images of its subset.

    A run that was stopped continues from what it stored; where the best epoch is selected, it starts again.
    """
    best, kept = -1.0, None

    def after_epoch(epoch: int, loss: float) -> None:
        nonlocal best, kept
        log.info("%s: epoch %d of %d, loss %.4f", recipe.name, epoch + 1, recipe.training.epochs, loss)
        if recipe.select:
            found = accuracy(model, sample(recipe.subset.data, recipe.subset.seed, VALIDATION))
            if found > best:
                best, kept = found, copy.deepcopy(model.state_dict())

    model = build(recipe).to(device())
    fit(model, images, recipe.training, after_epoch=after_epoch, resumable=None if recipe.select else resumable)
    if kept is not None:
        model.load_state_dict(kept)
    return model.cpu().eval()


def fit(
    model: nn.Module,
    images: Images,
    training: TrainingConfig,
    *,
    after_epoch: Callable[[int, float], None] | None = None,
    resumable: Resumable | None = None,
) -> None:
    """Train a model in place on uint8 images, with cross entropy; it ends in evaluation mode.

    Args:
        model: any classifier of such images; it stays on its device.
        images: the training images.
        training: the hyperparameters.
        after_epoch: called with the number of the epoch and its last loss.
        resumable: where the state is stored between epochs, so that a run that was stopped continues.
    """
    target, layout = next(model.parameters()).device, _training_format(model)
    x, y = normalised(images.images).to(target), images.labels.to(target)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    steps = len(images) // training.batch
    optimiser = _optimiser(model, training)
    scheduler = _scheduler(optimiser, training, steps)
    generator = torch.Generator().manual_seed(training.order)
    parts: dict[str, Any] = {"model": model, "optimiser": optimiser}
    if scheduler is not None:
        parts["scheduler"] = scheduler
    first = 0
    if resumable is not None and (stored := resumable.load()) is not None:
        for name, part in parts.items():
            part.load_state_dict(stored[name])
        generator.set_state(stored["generator"])
        first = stored["epoch"]

    def state() -> dict[str, Any]:
        states = {name: part.state_dict() for name, part in parts.items()}
        return states | {"generator": generator.get_state(), "epoch": epoch + 1}

    for epoch in range(first, training.epochs):
        model.train()
        loss = torch.zeros(())
        order = torch.randperm(len(x), generator=generator).to(target)
        for index in order[: steps * training.batch].split(training.batch):
            batch = augmented(x[index], generator) if training.augment else x[index]
            loss = F.cross_entropy(model(batch.contiguous(memory_format=layout)), y[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if scheduler is not None:
                scheduler.step()
        if after_epoch is not None:
            after_epoch(epoch, loss.item())
        if resumable is not None:
            resumable.save(state)
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model.eval()


def _optimiser(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    if training.adam:
        return torch.optim.Adam(model.parameters(), training.rate, weight_decay=training.decay, fused=True)
    return torch.optim.SGD(model.parameters(), training.rate, momentum=0.9, weight_decay=training.decay, nesterov=True)


def _scheduler(optimiser: torch.optim.Optimizer, training: TrainingConfig, steps: int) -> Scheduler | None:
    total = max(1, training.epochs * steps)
    if training.schedule == "one-cycle":
        return torch.optim.lr_scheduler.OneCycleLR(optimiser, training.rate, total_steps=total)
    if training.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)
    if training.schedule == "halving":
        return torch.optim.lr_scheduler.StepLR(optimiser, 30 * steps, 0.5)
    return None


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each image (n × c × h × w) shifted by up to four pixels, zeros coming in, and flipped half of the time."""
    n, c, h, w = x.shape
    padded = F.pad(x, (4, 4, 4, 4))
    right, down = (torch.randint(0, 9, (n, 1), generator=generator) for _ in range(2))
    flipped = torch.rand(n, generator=generator) < 0.5
    along = torch.arange(w)
    columns = (right + torch.where(flipped[:, None], w - 1 - along, along)).to(x.device)
    rows = (down + torch.arange(h)).to(x.device)
    images, channels = torch.arange(n)[:, None, None, None], torch.arange(c)[None, :, None, None]
    return padded[images, channels, rows[:, None, :, None], columns[:, None, None, :]]


@torch.no_grad()
def logits(model: nn.Module, images: Tensor, *, batch: int = 500) -> Tensor:
    """The logits (n × classes) of uint8 images (n × c × h × w), computed in evaluation mode; on the CPU."""
    target, layout = next(model.parameters()).device, _memory_format(model)
    model.eval()
    return torch.cat([model(_input(x, target, layout)).cpu() for x in images.split(batch)])


def _input(images: Tensor, target: torch.device, layout: torch.memory_format) -> Tensor:
    return normalised(images).to(target).contiguous(memory_format=layout)


def _memory_format(model: nn.Module) -> torch.memory_format:
    """The memory format of the images: the faster one for convolutions."""
    planar = any(p.dim() == 4 for p in model.parameters())
    return torch.channels_last if planar else torch.contiguous_format


def _training_format(model: nn.Module) -> torch.memory_format:
    """The same, except for networks with very few channels.

    In channels-last format, the backward pass of a strided 1×1 convolution with fewer than eight channels corrupts
    memory on some processors (seen with PyTorch 2.13 on one with AVX2 and without AVX-512).
    """
    narrow = any(p.dim() == 4 and p.shape[0] < 8 for p in model.parameters())
    return torch.contiguous_format if narrow else _memory_format(model)


def accuracy(model: nn.Module, images: Images) -> float:
    """The accuracy of a classifier, in percent."""
    return percent(logits(model, images.images), images.labels)


def percent(scores: Tensor, labels: Tensor) -> float:
    """The percentage of rows of the logits (n × classes) whose maximum is at the label."""
    return 100.0 * int((scores.argmax(1) == labels).sum()) / len(labels)
