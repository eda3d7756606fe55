"""Training and scoring language models of bytes."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data.text import Domain, load_text
from .networks import GPT
from .resuming import Resumable
from .text_recipes import TextRecipe, TextTraining

log = logging.getLogger(__name__)

LOGGED = 100  # steps between two lines of the log
WARM_UP = 20  # one in so many steps


def build_text(recipe: TextRecipe) -> GPT:
    """The network with its initial random weights; the global random state is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.start)
        return GPT(recipe.width, depth=recipe.depth, heads=recipe.heads, context=recipe.context)


def train_text(recipe: TextRecipe, model: nn.Module, resumable: Resumable | None = None) -> nn.Module:
    """Train a model in place as the recipe says; it ends in evaluation mode.

    Args:
        recipe: the domains and the hyperparameters.
        model: random, or the base.
        resumable: where the state is stored, so that a run that was stopped continues.
    """
    training = recipe.training
    texts = [load_text(domain).train for domain in recipe.domains]
    optimiser = torch.optim.AdamW(
        model.parameters(), training.rate, betas=(0.9, 0.95), weight_decay=training.decay, fused=True
    )
    first = 0
    if resumable is not None and (stored := resumable.load()) is not None:
        model.load_state_dict(stored["model"])
        optimiser.load_state_dict(stored["optimiser"])
        first = stored["step"]

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step + 1}

    model.train()
    for step in range(first, training.steps):
        for group in optimiser.param_groups:
            group["lr"] = rate(training, step)
        loss = F.cross_entropy(*_aligned(model, batch(texts, recipe, step)))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if (step + 1) % LOGGED == 0:
            log.info(
                "%s: step %d of %d, %.3f bits per byte",
                recipe.name,
                step + 1,
                training.steps,
                loss.item() / math.log(2),
            )
        if resumable is not None:
            resumable.save(state)
    return model.eval()


def rate(training: TextTraining, step: int) -> float:
    """The learning rate of a step."""
    warm = max(1, training.steps // WARM_UP)
    rest = max(0.0, (step + 1 - warm) / max(1, training.steps - warm))
    return training.rate * min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * rest))


def batch(texts: list[Tensor], recipe: TextRecipe, step: int) -> Tensor:
    """Passages with the byte after them (batch × context + 1), the same for every run of the step."""
    generator = torch.Generator().manual_seed(recipe.training.order * 1_000_003 + step)
    chosen = torch.randint(len(texts), (recipe.training.batch,), generator=generator).tolist()
    return torch.cat([passages(texts[k], recipe.context, 1, generator) for k in chosen])


def passages(text: Tensor, context: int, count: int, generator: torch.Generator) -> Tensor:
    """Passages at random places, with the byte after them: int64 (count × context + 1)."""
    starts = torch.randint(len(text) - context, (count, 1), generator=generator)
    return text[starts + torch.arange(context + 1)].long()


def _aligned(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The logits after every byte, and the bytes that follow."""
    return model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()


def scored(text: Tensor, context: int, count: int) -> Tensor:
    """Passages that share no byte but their first and last, evenly spread over a text: int64 (n × context + 1).

    At most `count` bytes are scored, the last `context` of every passage.
    """
    places = (len(text) - 1) // context
    number = min(places, count // context)
    starts = torch.arange(number) * places // number * context
    return text[starts[:, None] + torch.arange(context + 1)].long()


@torch.no_grad()
def bits_per_byte(models: Sequence[nn.Module], passages: Tensor, *, rows: int = 64) -> float:
    """The mean of −log₂ of the probability of every byte but the first of each passage.

    The probabilities are those of the mean of the models' logits: of one model, or of an ensemble.
    """
    total = 0.0
    for x in passages.split(rows):
        logits = sum(model.eval()(x[:, :-1]) for model in models) / len(models)
        total += float(F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), reduction="sum"))
    return total / passages[:, 1:].numel() / math.log(2)


def held_out(domain: Domain, context: int, count: int) -> Tensor:
    """Passages of the held-out text of a domain."""
    return scored(load_text(domain).test, context, count)


def example_text(recipe: TextRecipe) -> Tensor:
    """Two passages (2 × context)."""
    return load_text(recipe.domains[0]).train[: 2 * recipe.context].long().unflatten(0, (2, -1))
