"""Accuracy of outputs and labels in all the forms that they come in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.inputs import Signature
from partialfusion.errors import DataError
from partialfusion.fusing.scoring import Accuracy


class Given(nn.Module):
    """Returns what it is given, as an entry of its output."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": x, "states": (x, x)}


class Two(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"a": x, "b": x}


NAMED = Signature(0, ("x",))
LABELS = torch.tensor([[0, 2, -100, 1], [-100, -100, -100, 3]])
SHIFTED = torch.tensor([[0, 2, 0, 3], [0, 0, 0, 3]])  # one of four is wrong


def one_hot(labels: Tensor) -> Tensor:
    return nn.functional.one_hot(labels, 6).float()


@pytest.mark.parametrize("key", ["labels", "label"])
def test_mappings_with_labels(key: str) -> None:
    labels = torch.tensor([1, 0, 3])
    found = Accuracy([{"x": one_hot(torch.tensor([1, 2, 3])), key: labels, "other": "text"}], NAMED)(Given())
    assert found.value == pytest.approx(2 / 3)
    assert found.samples.tolist() == [1, 0, 1]
    pair = Accuracy([({"x": one_hot(labels)}, labels)], NAMED)(Given())
    assert pair.value == 1


@pytest.mark.parametrize("last", [True, False])
def test_classes_are_last_or_on_dimension_one_and_some_labels_are_ignored(last: bool) -> None:
    outputs = one_hot(SHIFTED) if last else one_hot(SHIFTED).transpose(1, 2)
    ignored = {"x": outputs[:1], "labels": torch.full((1, 4), -100)}
    found = Accuracy([{"x": outputs, "labels": LABELS}, ignored], NAMED)(Given())
    assert found.value == pytest.approx(3 / 4)
    assert len(found.samples) == 2
    assert float(found.samples.mean()) == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("model", "batch", "told"),
    [
        (Given(), {"x": one_hot(LABELS.clamp_min(0))}, 'add the key "labels"'),
        (Given(), {"x": torch.randn(2, 4, 4), "labels": LABELS}, "dimension 1 or on the last one"),
        (Given(), {"x": torch.randn(2, 3, 6), "labels": LABELS}, r"labels of shape \(2, 4\) for outputs of shape"),
        (Given(), {"x": torch.randn(2, 4, 3), "labels": LABELS}, "labels from 0 to 3 and the model 3 classes"),
        (Given(), {"x": torch.randn(2, 1, 4), "labels": LABELS}, "no classes to choose from"),
        (Two(), {"x": torch.randn(2, 4, 6), "labels": LABELS}, "name one with output="),
        (Given(), {"x": torch.randn(2, 4, 6), "labels": torch.full((2, 4), -100)}, "no labelled batch"),
    ],
)
def test_what_cannot_be_scored_is_told(model: nn.Module, batch: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        Accuracy([batch], NAMED)(model)


def test_an_output_that_is_named_is_scored() -> None:
    batch = {"x": one_hot(SHIFTED), "labels": LABELS}
    assert Accuracy([batch], Signature(0, ("x",), "b"))(Two()).value == pytest.approx(3 / 4)


def test_a_frontier_on_mappings() -> None:
    class Net(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.hidden, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            states = torch.relu(self.hidden(x))
            return {"logits": self.head(states), "states": states}

    models, x = [Net(0), Net(1)], torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    batches = [{"x": x, "labels": models[0](x)["logits"].argmax(1)}]
    found = pf.frontier(models, {"x": x[:2]}, evaluate=batches, data=batches, alphas=[0.0, 1.0])
    scores = {(p.kind, p.alpha): p.score for p in found.points}
    assert scores["fused", 1.0] == scores["ensemble", None]
    assert all(p.error is None for p in found.points)
