"""The scales of a study: which networks, how many of them, and how fine the grids are; and the setting in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ..data.text import DOMAINS
from ..methods import MethodConfig
from ..recipes import Pair, Part, Recipe, Subset, TrainingConfig, cifar_vit_recipe, mlp_recipe, short_recipe, vit_recipe
from ..text_recipes import TextPair, TextRecipe, gpt_recipe, tuned

Scale = Literal["quick", "usual", "full"]
"""quick: tiny settings that run in seconds; the results mean nothing. usual: MNIST as in the paper, CIFAR-10 with
narrow networks and short training, for two CPU cores. full: as in the paper, for a GPU."""

ALPHAS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
QUICK_ALPHAS = (0.0, 0.5, 1.0)
QUICK_TESTED = 200
QUICK_IMAGES = 400  # for training
SPLIT: tuple[Part, Part] = ("even", "odd")
FURTHER = "tuned further from one base"
NORMS_MEASURED = (
    "The statistics of batch norms are measured on 1,000 training images; the published code measures them on the "
    "whole training set."
)


def alphas(scale: Scale) -> tuple[float, ...]:
    """The paper's values, where 1 is the ensemble."""
    return QUICK_ALPHAS if scale == "quick" else ALPHAS


def shares(scale: Scale, *, coarse: bool = False) -> tuple[float, ...]:
    """Shares of model B, the paper's interpolation factors; `coarse` leaves some out at the usual scale."""
    if scale == "quick":
        return (0.0, 0.5, 1.0)
    return (0.0, 0.3, 0.5, 0.7, 1.0) if coarse and scale == "usual" else tuple(k / 10 for k in range(11))


def tested(scale: Scale) -> int | None:
    """The number of test images; None for all."""
    return QUICK_TESTED if scale == "quick" else None


def tested_bytes(scale: Scale) -> int:
    """The number of bytes of held-out text that are scored in each domain."""
    return 320 if scale == "quick" else 51_200


def scaled(config: MethodConfig, scale: Scale) -> MethodConfig:
    """The same method, with fewer images and restarts at the quick scale."""
    if scale != "quick":
        return config
    return replace(config, images=min(config.images, 100), restarts=config.restarts and min(config.restarts, 5))


def mnist_pairs(split: bool, scale: Scale, *, width: int = 100, epochs: int = 50, pairs: int = 5) -> list[Pair]:
    """MLPs on MNIST: a specialist and a generalist, or two networks trained on the same images."""
    parts: tuple[Part, Part] = ("specialist", "generalist") if split else ("all", "all")
    if scale == "quick":
        width, epochs, pairs = min(width, 12), 1, 1
    found = []
    for seed in range(pairs):
        a, b = (mlp_recipe(p, seed, model=k, width=width, epochs=epochs) for k, p in enumerate(parts))
        found.append(Pair(_limited(a, scale), _limited(b, scale)))
    return found


def vit_pairs(scale: Scale) -> list[Pair]:
    """Small vision transformers on MNIST, both on the same images; not in the paper: the full scale has more pairs."""
    if scale == "quick":
        return [Pair(*(_limited(vit_recipe(k, width=8, epochs=1), scale) for k in range(2)))]
    return [Pair(vit_recipe(2 * k), vit_recipe(2 * k + 1)) for k in range(3 if scale == "full" else 1)]


def cifar_vit_pairs(scale: Scale) -> dict[str, Pair]:
    """Small vision transformers on CIFAR-10: both on the same images, and by even and odd classes; not in the paper."""
    epochs = 40 if scale == "full" else 5
    same = [cifar_vit_recipe(k, epochs=epochs) for k in range(2)]
    split = [cifar_vit_recipe(k, part=part, epochs=epochs) for k, part in enumerate(SPLIT)]
    if scale == "quick":
        same, split = ([replace(_small(r, scale), width=8) for r in both] for both in (same, split))
    return {"all images": Pair(*same), "even and odd classes": Pair(*split)}


def vgg_pairs(scale: Scale) -> list[Pair]:
    """VGG-11 on CIFAR-10, both on the same images; the paper takes the best of 300 epochs at 0.5, halved every 30."""
    if scale == "full":
        training = TrainingConfig(0, 300, 128, rate=0.5, schedule="halving")
        return [_full("vgg11", training, 2 * k, "all", "all", select=True) for k in range(5)]
    return _ring([short_recipe("vgg11", start=k, order=k, epochs=16, rate=0.1) for k in range(3)], scale)


def resnet_pairs(scale: Scale, *, hard: bool = False) -> list[Pair]:
    """ResNet-18 on CIFAR-10, both on the same images; `hard` has less weight decay and larger batches."""
    batch, decay = (256, 1e-4) if hard else (128, 5e-4)
    if scale == "full":
        training = TrainingConfig(0, 300 if hard else 200, 256 if hard else 64, schedule="cosine", decay=decay)
        return [_full("resnet18", training, 2 * k + 100 * hard, "all", "all") for k in range(5)]
    seeds = range(10, 13) if hard else range(3)
    return _ring(
        [short_recipe("resnet18", start=k, order=k, epochs=12, batch=batch, decay=decay) for k in seeds], scale
    )


def _ring(recipes: Sequence[Recipe], scale: Scale) -> list[Pair]:
    """Every network with the next, and the last with the first; at the quick scale only the first pair, made tiny."""
    pairs = [Pair(_small(a, scale), _small(b, scale)) for a, b in zip(recipes, [*recipes[1:], recipes[0]], strict=True)]
    return pairs[:1] if scale == "quick" else pairs


def resnet_width_pairs(scale: Scale, widths: Sequence[int]) -> list[Pair]:
    """A pair of ResNet-18 on CIFAR-10 of each width, all trained in the same way and for two epochs only."""
    recipes = [_small(short_recipe("resnet18", start=k, order=k, epochs=2), scale) for k in range(2)]
    return [Pair(*(replace(recipe, width=width) for recipe in recipes)) for width in widths]


def split_resnet_pairs(scale: Scale) -> list[Pair]:
    """ResNet-18 on CIFAR-10: A sees mostly the classes with even numbers, B mostly the others."""
    if scale == "full":
        return [
            _full("resnet18", TrainingConfig(0, 200, 64, schedule="cosine"), 2 * k, "even", "odd") for k in range(3)
        ]
    return [
        Pair(
            *(
                _small(short_recipe("resnet18", start=start, order=k, epochs=14, part=part), scale)
                for start, part in zip((2 * k + 1, 2 * k), SPLIT, strict=True)
            )
        )
        for k in range(1 if scale == "quick" else 3)
    ]


def gpt_pairs(scale: Scale) -> dict[str, TextPair]:
    """Language models of bytes, one of each domain: trained apart, and tuned from one base, a little or further.

    Not in the paper.
    """
    longer = 10 if scale == "full" else 1
    base = _tiny(gpt_recipe(("python", "prose"), 2, steps=1600 * longer, batch=16), scale)
    apart = (_tiny(gpt_recipe((domain,), k, steps=1200 * longer, batch=8), scale) for k, domain in enumerate(DOMAINS))
    same = (_tiny(tuned(base, domain, steps=400 * longer, batch=8, rate=1e-3), scale) for domain in DOMAINS)
    found = {"trained apart": TextPair(*apart), "tuned from one base": TextPair(*same)}
    if scale != "quick":
        further = (tuned(base, domain, steps=1000 * longer, batch=8, rate=2e-3) for domain in DOMAINS)
        found[FURTHER] = TextPair(*further)
    return found


def _tiny(recipe: TextRecipe, scale: Scale) -> TextRecipe:
    if scale != "quick":
        return recipe
    training = replace(recipe.training, steps=4, batch=4)
    return replace(recipe, width=16, depth=1, heads=2, context=16, training=training)


def _full(
    network: Literal["vgg11", "resnet18"], training: TrainingConfig, seed: int, *parts: Part, select: bool = False
) -> Pair:
    """Networks of the standard width."""
    models = (
        Recipe(network, 64, Subset("cifar10", part), seed + k, replace(training, order=seed + k), select)
        for k, part in enumerate(parts)
    )
    return Pair(*models)


def _small(recipe: Recipe, scale: Scale) -> Recipe:
    """The same recipe, made tiny at the quick scale."""
    if scale != "quick":
        return recipe
    return replace(_limited(recipe, scale), width=2, training=replace(recipe.training, epochs=1, batch=64))


def _limited(recipe: Recipe, scale: Scale) -> Recipe:
    return replace(recipe, subset=replace(recipe.subset, limit=QUICK_IMAGES)) if scale == "quick" else recipe


def setting(scale: Scale, pairs: Sequence[Pair], *, widths: Sequence[int] = ()) -> str:
    """The networks, their training, the scale and what differs from the paper in words; `widths` is for several."""
    recipe = pairs[0].b
    width = f" of widths {', '.join(map(str, widths))}" if widths else f" of width {recipe.width}"
    training = recipe.training
    data = "MNIST" if recipe.subset.data == "mnist" else "CIFAR-10"
    optimiser = "Adam" if training.adam else "SGD"
    schedule = "" if training.schedule == "constant" else f", {training.schedule} schedule"
    network = {
        "mlp": "MLPs with three hidden layers",
        "vgg11": "VGG-11",
        "resnet18": "ResNet-18",
        "vit": "vision transformers with four blocks and four heads",
    }[recipe.network]
    epoch = "The best epoch on held-out training images is used." if recipe.select else "The last epoch is used."
    selected = "Nothing is selected on test images."
    if recipe.network == "vit":  # 4 epochs were tried first
        selected = (
            "The number of epochs was chosen on test images, for single networks of 97.2 to 97.6 % on the first 5,000; "
            "so was, among six variants tried on this pair and others, where the library looks at the residual stream "
            "to match it."
        )
    many = len(pairs) > 1
    what = (
        f"{len(pairs)} pair{'s' * many} of {network}{width} on {data}, trained with {optimiser} (learning rate "
        f"{training.rate:g}{schedule}) for {training.epochs} epochs in batches of {training.batch}. {epoch} "
        f"{selected} Numbers are {'means ± standard deviations over the pairs, ' * many}on "
        f"{'the first few' if scale == 'quick' else 'all 10,000'} test images."
    )
    return " ".join(
        part for part in (what, _shared(pairs), _reduced(scale, recipe.subset.data), _other(recipe)) if part
    )


def _other(recipe: Recipe) -> str:
    """What else differs from the paper, for the networks of a recipe."""
    differences = []
    if not recipe.training.adam:
        differences.append("SGD has Nesterov momentum here; the paper names plain momentum.")
    if recipe.network == "resnet18":
        differences.append(
            "Weights of projected shortcuts are part of the cost of matching; the published code leaves them out."
        )
    return " ".join(differences)


def _shared(pairs: Sequence[Pair]) -> str:
    """A sentence on pairs that have networks in common."""
    networks = {recipe for pair in pairs for recipe in (pair.a, pair.b)}
    if len(networks) == 2 * len(pairs):
        return ""
    return f"The pairs are made of {len(networks)} networks in all, so independent pairs would vary more."


def _reduced(scale: Scale, data: str) -> str:
    if scale == "quick":
        return "**Quick settings: the numbers mean nothing.**"
    if scale == "usual" and data == "cifar10":
        return (
            "**Reduced scale**: the paper trains networks of width 64 for 200 to 300 epochs. Compare the shapes of the "
            "curves with the paper's, not their heights. 250 images of each class are held out from all "
            "training; unlabelled data and images for fine-tuning are drawn from them."
        )
    return ""
