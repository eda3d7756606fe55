"""Training of the paper's networks from their recipes, and of whatever else by the same steps."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import Images, normalised
from .networks import VGG11, ResNet18, mlp
from .recipes import Course, Training
from .samples import CLASSES, sample

log = logging.getLogger(__name__)

Scheduler = torch.optim.lr_scheduler.LRScheduler
CHOOSING = 2500  # held-out images that an epoch is chosen on


def device() -> str:
    """Where networks are trained and measured."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def build(recipe: Training) -> nn.Module:
    """The network with its first weights; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.start)
        if recipe.network == "mlp":
            return nn.Sequential(nn.Flatten(), *mlp(784, *[recipe.width] * 3, CLASSES))
        return (VGG11 if recipe.network == "vgg11" else ResNet18)(recipe.width)


def train(recipe: Training, images: Images) -> nn.Module:
    """The network of a recipe, trained on the images of its share."""
    best, kept = -1.0, None

    def after_epoch(epoch: int, loss: float) -> None:
        nonlocal best, kept
        log.info("%s: epoch %d of %d, loss %.4f", recipe.name, epoch + 1, recipe.course.epochs, loss)
        if recipe.select:
            found = accuracy(model, sample(recipe.share.data, recipe.share.seed, CHOOSING))
            if found > best:
                best, kept = found, copy.deepcopy(model.state_dict())

    model = build(recipe).to(device())
    fit(model, images, recipe.course, after_epoch=after_epoch)
    if kept is not None:
        model.load_state_dict(kept)
    return model.cpu().eval()


def fit(
    model: nn.Module, images: Images, course: Course, *, after_epoch: Callable[[int, float], None] | None = None
) -> None:
    """Train a model in place on uint8 images, with cross entropy; it ends in evaluation mode.

    Args:
        model: any classifier of such images; it stays on its device.
        images: what it learns.
        course: the steps.
        after_epoch: called with the number of the epoch and its last loss.
    """
    where, form = next(model.parameters()).device, _form(model)
    x, y = normalised(images.images).to(where), images.labels.to(where)
    model.to(memory_format=form)  # type: ignore[call-overload]
    steps = len(images) // course.batch
    optimiser = _optimiser(model, course)
    scheduler = _scheduler(optimiser, course, steps)
    generator = torch.Generator().manual_seed(course.order)
    for epoch in range(course.epochs):
        model.train()
        loss = torch.zeros(())
        order = torch.randperm(len(x), generator=generator).to(where)
        for index in order[: steps * course.batch].split(course.batch):
            batch = augmented(x[index], generator) if course.augment else x[index]
            loss = F.cross_entropy(model(batch.contiguous(memory_format=form)), y[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if scheduler is not None:
                scheduler.step()
        if after_epoch is not None:
            after_epoch(epoch, loss.item())
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model.eval()


def _optimiser(model: nn.Module, course: Course) -> torch.optim.Optimizer:
    if course.adam:
        return torch.optim.Adam(model.parameters(), course.rate, weight_decay=course.decay, fused=True)
    return torch.optim.SGD(model.parameters(), course.rate, momentum=0.9, weight_decay=course.decay, nesterov=True)


def _scheduler(optimiser: torch.optim.Optimizer, course: Course, steps: int) -> Scheduler | None:
    total = max(1, course.epochs * steps)
    if course.schedule == "one-cycle":
        return torch.optim.lr_scheduler.OneCycleLR(optimiser, course.rate, total_steps=total)
    if course.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)
    if course.schedule == "halving":
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
    """What a model in evaluation mode says of uint8 images (n × c × h × w): (n × classes), on the CPU."""
    where, form = next(model.parameters()).device, _form(model)
    model.eval()
    return torch.cat([model(_input(x, where, form)).cpu() for x in images.split(batch)])


def _input(images: Tensor, where: torch.device, form: torch.memory_format) -> Tensor:
    return normalised(images).to(where).contiguous(memory_format=form)


def _form(model: nn.Module) -> torch.memory_format:
    """How images lie in memory: the faster way for convolutions."""
    planar = any(p.dim() == 4 for p in model.parameters())
    return torch.channels_last if planar else torch.contiguous_format


def accuracy(model: nn.Module, images: Images) -> float:
    """In percent."""
    return percent(logits(model, images.images), images.labels)


def percent(found: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest logit (n × classes) is the label's, in percent."""
    return 100.0 * int((found.argmax(1) == labels).sum()) / len(labels)
