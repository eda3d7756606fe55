"""Scores of networks: the user's own function, or accuracy on labelled batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import feed
from ..core.inputs import LABELS, Signature
from ..core.modules import at_rest
from ..errors import DataError, OptionError

IGNORED = -100  # a label that does not count, as in PyTorch's cross_entropy

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
    def of(cls, evaluate: Evaluate, signature: Signature, name: str | None = None) -> Scorer:
        """The measure that a user's option means: a function of a model, or batches of inputs and labels."""
        if isinstance(evaluate, (nn.Module, Tensor)) or not (callable(evaluate) or isinstance(evaluate, Iterable)):
            raise OptionError(
                f"evaluate is a {type(evaluate).__name__}: pass a function of a model that gives a number, or an "
                "iterable of (input, label) batches"
            )
        if callable(evaluate):
            return cls(name or "score", evaluate)
        return cls(name or "accuracy", Accuracy(evaluate, signature))

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
    """The fraction of labels that are the largest output among the classes.

    Outputs are (n × classes × …) with labels (n × …), or have the classes last, as language models have; labels of
    -100 are ignored. Nothing is shifted: labels of a language model are the tokens that its outputs should predict.
    """

    def __init__(self, data: Iterable[Any], signature: Signature) -> None:
        self.data = list(data) if isinstance(data, Iterator) else data
        self.signature = signature

    def __call__(self, model: nn.Module) -> Score:
        hits: list[Tensor] = []
        total, order = 0, 0
        for number, batch in enumerate(self.data):
            labels = torch.as_tensor(self._labels(batch, number))
            inputs = self.signature.inputs(batch)
            found = predicted(inputs.results(feed(model, inputs, number)), labels, number)
            counted = labels != IGNORED
            right = ((found.cpu() == labels.cpu()) & counted.cpu()).reshape(len(labels), -1)
            counts = counted.reshape(len(labels), -1).sum(1).cpu()
            hits.append(right.sum(1)[counts > 0].double())
            total += int(counts.sum())
            order = hash((order, labels.double().cpu().numpy().tobytes()))
        if not total:
            raise DataError("evaluate holds no labelled batch: pass at least one batch of inputs and labels")
        samples = torch.cat(hits)
        return Score(float(samples.sum()) / total, samples * (len(samples) / total), order)

    def _labels(self, batch: Any, number: int) -> Any:
        """The labels of a batch: the entry "labels" or "label" of a mapping, else what follows the inputs."""
        if isinstance(batch, Mapping):
            name = next((name for name in LABELS if name in batch), None)
            if name is None:
                raise DataError(
                    f"batch {number} of evaluate has {', '.join(map(str, batch))} and no labels: add the key "
                    '"labels", or pass evaluate as a function of a model'
                )
            return batch[name]
        count = 1 if self.signature.names else self.signature.count
        if not isinstance(batch, (tuple, list)) or len(batch) != count + 1:
            raise DataError(
                f"batch {number} of evaluate is not {count} input(s) and labels: pass (input, label) batches, or a "
                "function of a model"
            )
        return batch[-1]


def predicted(results: Sequence[Tensor], labels: Tensor, number: int) -> Tensor:
    """(n, …) classes of the shape of the labels, from one result of shape (n × classes × …) or (n × … × classes)."""
    shapes = [tuple(t.shape) for t in results]
    if len(results) > 1:
        raise DataError(
            f"the model gives {len(results)} results of shapes {shapes} on batch {number}, not one of samples × "
            "classes: name one with output=…, or pass evaluate as a function of a model"
        )
    (result,), (shape,) = results, shapes
    if result.dim() < 2:
        raise DataError(
            f"the model gives a tensor of shape {shape} on batch {number}, not one of samples × classes: pass "
            "evaluate as a function of a model"
        )
    if shape[1] == 1 and (result.dim() == 2 or tuple(labels.shape) == (shape[0], *shape[2:])):
        raise DataError(
            f"the model gives one number for each sample on batch {number} (shape {shape}), so there are no classes to "
            "choose from: pass evaluate as a function of a model"
        )
    fitting = {dim for dim in (1, result.dim() - 1) if (*shape[:dim], *shape[dim + 1 :]) == tuple(labels.shape)}
    if len(fitting) != 1:
        why = "the classes may be on dimension 1 or on the last one: " if fitting else "pass class numbers, or "
        raise DataError(
            f"batch {number} of evaluate has labels of shape {tuple(labels.shape)} for outputs of shape {shape}: {why}"
            f"{'pass ' if fitting else ''}evaluate as a function of a model"
        )
    (dim,) = fitting
    known = labels[labels != IGNORED]
    if known.is_complex() or (known.is_floating_point() and bool((known != known.round()).any())):
        raise DataError(
            f"batch {number} of evaluate has labels that are no whole numbers: pass class numbers, or evaluate as a "
            "function of a model"
        )
    if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < shape[dim]:
        raise DataError(
            f"batch {number} of evaluate has labels from {int(known.min())} to {int(known.max())} and the model "
            f"{shape[dim]} classes: number them from 0, or pass evaluate as a function of a model"
        )
    return result.argmax(dim)
