"""Sentences that several chapters need."""

from __future__ import annotations

from collections.abc import Sequence

from ..recipes import Pair
from .settings import Scale


def setting(scale: Scale, pairs: Sequence[Pair], *, widths: Sequence[int] = ()) -> str:
    """What was trained, how often, and at which scale; `widths` where a chapter is about several."""
    recipe = pairs[0].b
    width = f" of widths {', '.join(map(str, widths))}" if widths else f" of width {recipe.width}"
    course = recipe.course
    data = "MNIST" if recipe.share.data == "mnist" else "CIFAR-10"
    optimiser = "Adam" if course.adam else "SGD"
    schedule = "" if course.schedule == "constant" else f", {course.schedule} schedule"
    network = {"mlp": "MLPs with three hidden layers", "vgg11": "VGG-11", "resnet18": "ResNet-18"}[recipe.network]
    chosen = "The epoch is chosen on held-out training images." if recipe.select else "The last epoch is taken."
    what = (
        f"{len(pairs)} pair{'s' * (len(pairs) > 1)} of {network}{width} on {data}; {optimiser} at "
        f"{course.rate:g}{schedule}, {course.epochs} epochs in batches of {course.batch}. {chosen} "
        "Nothing is chosen on test images. Numbers are means over the pairs ± standard deviations, on "
        f"{'the first few' if scale == 'quick' else 'all 10,000'} test images."
    )
    return f"{what} {_reduced(scale, recipe.share.data)}".strip()


def _reduced(scale: Scale, data: str) -> str:
    if scale == "quick":
        return "**Quick settings: the numbers mean nothing.**"
    if scale == "usual" and data == "cifar10":
        return (
            "**Reduced scale**: the paper trains networks of width 64 for 200 to 300 epochs. Numbers of the paper "
            "stand beside ours for the shape of the curves, not for their height. 250 images of each class are held "
            "out from all trainings; what serves as unlabelled data or for fine-tuning is drawn from them."
        )
    return ""
