"""Scores of networks: the user's own function, or accuracy on labelled batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import feed
from ..core.modules import at_rest
from ..errors import DataError, OptionError

Evaluate = Callable[[nn.Module], Any] | Iterable[Any]


@dataclass(frozen=True)
class Score:
    """The score of a network.

    Attributes:
        value: larger is better.
        samples: (n,) what every sample contributed, on the CPU, where that is known.
        order: a number that changes with the order of the labels, where there are labels.
    """

    value: float
    samples: Tensor | None = None
    order: int | None = None


@dataclass(frozen=True)
class Scorer:
    """A measure, larger is better.

    Attributes:
        name: what the number is, for tables and pages.
        measure: model → number.
    """

    name: str
    measure: Callable[[nn.Module], Any]

    @classmethod
    def of(cls, evaluate: Evaluate, inputs: int, name: str | None = None) -> Scorer:
        """The measure that a user's option means: a function of a model, or batches of inputs and labels."""
        if isinstance(evaluate, (nn.Module, Tensor)) or not (callable(evaluate) or isinstance(evaluate, Iterable)):
            raise OptionError(
                f"evaluate is a {type(evaluate).__name__}: pass a function of a model that gives a number, or an "
                "iterable of (input, label) batches"
            )
        if callable(evaluate):
            return cls(name or "score", evaluate)
        return cls(name or "accuracy", Accuracy(evaluate, inputs))

    def __call__(self, model: nn.Module) -> float:
        """The value of a model in evaluation mode; the model stays as it was."""
        return self.score(model).value

    def score(self, model: nn.Module) -> Score:
        """The score of a model in evaluation mode; the model stays as it was."""
        with at_rest(model):
            found = self.measure(model)
        score = found if isinstance(found, Score) else score_of(found)
        if not math.isfinite(score.value):
            raise OptionError(f"evaluate returned {score.value}, which is not finite")
        return score


def score_of(found: Any) -> Score:
    """The score that a user's function means: a number, or a tensor of one number for each sample."""
    if isinstance(found, Tensor) and found.dim() == 1 and len(found) > 1:
        samples = found.detach().double().cpu()
        return Score(float(samples.mean()), samples)
    try:
        return Score(float(found))
    except (TypeError, ValueError, RuntimeError):
        raise OptionError(
            f"evaluate returned a {type(found).__name__}, neither a number nor a tensor of one number per sample"
        ) from None


class Accuracy:
    """The fraction of labels that are the largest output along dimension 1."""

    def __init__(self, data: Iterable[Any], inputs: int) -> None:
        self.data = list(data) if isinstance(data, Iterator) else data
        self.inputs = inputs

    def __call__(self, model: nn.Module) -> Score:
        samples, right, total, order = [], 0, 0, 0
        for number, batch in enumerate(self.data):
            if not isinstance(batch, (tuple, list)) or len(batch) != self.inputs + 1:
                raise DataError(
                    f"batch {number} of evaluate is not {self.inputs} input(s) and labels: pass (input, label) batches,"
                    " or a function of a model"
                )
            labels = torch.as_tensor(batch[-1])
            found = predicted(feed(model, tuple(batch[:-1]), number), labels, number)
            hits = (found == labels.to(found.device)).flatten(1 if found.dim() > 1 else 0)
            right += int(hits.sum())
            total += hits.numel()
            samples.append(hits.reshape(len(labels), -1).double().mean(1).cpu())
            order = hash((order, labels.double().cpu().numpy().tobytes()))
        if not total:
            raise DataError("evaluate holds no labelled batch: pass at least one batch of inputs and labels")
        return Score(right / total, torch.cat(samples), order)


def predicted(output: Any, labels: Tensor, number: int) -> Tensor:
    """(n, …) classes of an (n × classes × …) output, of the shape of the labels."""
    if not isinstance(output, Tensor) or output.dim() < 2:
        raise DataError(
            f"the model gives a {type(output).__name__} on batch {number}, not a tensor of samples × classes: pass "
            "evaluate as a function of a model"
        )
    if output.shape[1] == 1:
        raise DataError(
            f"the model gives one number for each sample on batch {number} (shape {tuple(output.shape)}), so there are "
            "no classes to choose from: pass evaluate as a function of a model"
        )
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < output.shape[1]:
        raise DataError(
            f"batch {number} of evaluate has labels from {int(labels.min())} to {int(labels.max())} and the model "
            f"{output.shape[1]} classes: number them from 0, or pass evaluate as a function of a model"
        )
    found = output.argmax(1)
    if found.shape != labels.shape:
        raise DataError(
            f"batch {number} of evaluate has labels of shape {tuple(labels.shape)} for outputs of shape "
            f"{tuple(output.shape)}: pass class numbers, or evaluate as a function of a model"
        )
    return found
