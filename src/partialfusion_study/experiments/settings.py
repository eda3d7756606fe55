"""The scales of a study: which networks, how many of them, and how fine the grids are."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ..recipes import Course, Pair, Part, Share, Training, mlp_recipe, short_recipe
from ..ways import Way

Scale = Literal["quick", "usual", "full"]
"""quick: tiny settings that run through in seconds and mean nothing. usual: MNIST as in the paper, CIFAR-10 with narrow
networks and short trainings, for two processor cores. full: as in the paper, for a GPU."""

ALPHAS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
QUICK_ALPHAS = (0.0, 0.5, 1.0)
QUICK_TESTED = 200
QUICK_SHARE = 400  # training images


def alphas(scale: Scale, *, coarse: bool = False) -> tuple[float, ...]:
    """The paper's, 1 is the ensemble; where every point is expensive, one fewer at the usual scale."""
    if scale == "quick":
        return QUICK_ALPHAS
    return tuple(a for a in ALPHAS if a != 0.5) if coarse and scale == "usual" else ALPHAS


def shares(scale: Scale, *, coarse: bool = False) -> tuple[float, ...]:
    """Interpolation factors; where every point is expensive, fewer at the usual scale."""
    if scale == "quick":
        return (0.0, 0.5, 1.0)
    return (0.0, 0.3, 0.5, 0.7, 1.0) if coarse and scale == "usual" else tuple(k / 10 for k in range(11))


def tested(scale: Scale) -> int | None:
    """How many test images; None for all."""
    return QUICK_TESTED if scale == "quick" else None


def scaled(way: Way, scale: Scale) -> Way:
    """A way with fewer images and restarts where it must only run through."""
    if scale != "quick":
        return way
    return replace(way, images=min(way.images, 100), restarts=way.restarts and min(way.restarts, 5))


def mnist_pairs(split: bool, scale: Scale, *, width: int = 100, epochs: int = 50, pairs: int = 5) -> list[Pair]:
    """MLPs on MNIST: specialist and generalist, or two that saw the same images."""
    parts: tuple[Part, Part] = ("specialist", "generalist") if split else ("all", "all")
    if scale == "quick":
        width, epochs, pairs = min(width, 12), 1, 1
    found = []
    for seed in range(pairs):
        a, b = (mlp_recipe(p, seed, model=k, width=width, epochs=epochs) for k, p in enumerate(parts))
        found.append(Pair(_limited(a, scale), _limited(b, scale)))
    return found


def vgg_pairs(scale: Scale) -> list[Pair]:
    """VGG-11 on CIFAR-10, both on the same images. In the paper 300 epochs at 0.5, halved every 30, the best epoch."""
    if scale == "full":
        course = Course(0, 300, 128, rate=0.5, schedule="halving")
        return [_full("vgg11", course, 2 * k, "all", "all", select=True) for k in range(5)]
    return [
        Pair(*(_small(short_recipe("vgg11", start=k, order=k, epochs=16, rate=0.1), scale) for k in (2 * p, 2 * p + 1)))
        for p in range(1)
    ]


def resnet_pairs(scale: Scale, *, hard: bool = False) -> list[Pair]:
    """ResNet-18 on CIFAR-10, both on the same images, in one of two regimes of training; the hard one decays less."""
    batch, decay = (256, 1e-4) if hard else (128, 5e-4)
    if scale == "full":
        course = Course(0, 300 if hard else 200, 256 if hard else 64, schedule="cosine", decay=decay)
        return [_full("resnet18", course, 2 * k + 100 * hard, "all", "all") for k in range(5)]
    seeds = (10, 11) if hard else (0, 1)
    return [
        Pair(
            *(
                _small(short_recipe("resnet18", start=k, order=k, epochs=12, batch=batch, decay=decay), scale)
                for k in seeds
            )
        )
    ]


def split_resnet_pairs(scale: Scale) -> list[Pair]:
    """ResNet-18 on CIFAR-10: A knows the classes of even number, B the others, with few images of the rest."""
    if scale == "full":
        return [_full("resnet18", Course(0, 200, 64, schedule="cosine"), 0, "even", "odd")]
    a = short_recipe("resnet18", start=1, order=0, epochs=14, part="even")
    b = short_recipe("resnet18", start=0, order=0, epochs=14, part="odd")
    return [Pair(_small(a, scale), _small(b, scale))]


def _full(network: Literal["vgg11", "resnet18"], course: Course, seed: int, *parts: Part, select: bool = False) -> Pair:
    """Networks of the usual width."""
    models = (
        Training(network, 64, Share("cifar10", part), seed + k, replace(course, order=seed + k), select)
        for k, part in enumerate(parts)
    )
    return Pair(*models)


def _small(recipe: Training, scale: Scale) -> Training:
    """Made tiny where it must only run through."""
    if scale != "quick":
        return recipe
    return replace(_limited(recipe, scale), width=2, course=replace(recipe.course, epochs=1, batch=64))


def _limited(recipe: Training, scale: Scale) -> Training:
    return replace(recipe, share=replace(recipe.share, limit=QUICK_SHARE)) if scale == "quick" else recipe
