"""Inputs at random that show what example inputs may hide."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partialfusion.core.inputs import Inputs
from partialfusion.core.probes import STEPS, probes

ROWS, WIDTH = 11, 4


class Looked(nn.Module):
    """Two tables of different sizes, and lengths that are no index."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(ROWS, WIDTH), nn.Parameter(torch.randn(2, WIDTH))

    def forward(self, words: Tensor, kinds: Tensor, shown: Tensor) -> Tensor:
        x = self.words(words) + self.kinds[kinds]
        return x.masked_fill(~shown[..., None], 0.0)


def looked(length: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    shape = (3, length)
    return torch.zeros(shape, dtype=torch.long), torch.ones(shape, dtype=torch.long), torch.zeros(shape).bool()


def test_indices_come_from_the_whole_table() -> None:
    found = probes(Looked(), Inputs.of(looked(40)), seed=0)
    assert len(found) == 2
    for x, _ in found:
        words, kinds, _ = x.args
        assert set(words.unique().tolist()) == set(range(ROWS))
        assert set(kinds.unique().tolist()) == {0, 1}


def test_masks_stay_and_then_show_everything() -> None:
    (first, _), (second, results) = probes(Looked(), Inputs.of(looked()), seed=0)
    assert not first.args[2].any()
    assert second.args[2].all()
    assert results[0].any()


def test_a_single_step_becomes_several() -> None:
    _, (second, results) = probes(Looked(), Inputs.of(looked(1)), seed=0)
    assert all(value.shape == (3, STEPS) for value in second.args)
    assert results[0].shape == (3, STEPS, WIDTH)


def test_vectors_become_longer_sequences_where_the_model_takes_them() -> None:
    x = torch.zeros(2, 1, WIDTH)
    _, (second, _) = probes(nn.Linear(WIDTH, 3), Inputs.of(x), seed=0)
    assert second.args[0].shape == (2, STEPS, WIDTH)
    _, (second, _) = probes(nn.Conv1d(1, 3, 2), Inputs.of(x), seed=0)  # there it is a channel
    assert second.args[0].shape == (2, 1, WIDTH)


def test_integers_that_are_no_index_stay() -> None:
    bag = nn.EmbeddingBag(ROWS, WIDTH)
    ids, offsets = torch.zeros(12, dtype=torch.long), torch.tensor([0, 4, 7])
    for x, _ in probes(bag, Inputs.of((ids, offsets)), seed=0):
        assert torch.equal(x.args[1], offsets)
        assert x.args[0].unique().numel() > 1


class Refuses(nn.Module):
    """Indices among the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x.long())


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Refuses(), torch.zeros(2, 5)), (nn.Identity(), torch.tensor([3, 5]))],
    ids=["not on noise", "nothing at random"],
)
def test_nothing_to_try(model: nn.Module, inputs: Tensor) -> None:
    assert probes(model, Inputs.of(inputs), seed=0) == []
