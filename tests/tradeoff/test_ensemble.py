"""The ensemble as one module, for outputs of any structure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partialfusion.tradeoff.ensemble import OutputMix


@dataclass(frozen=True)
class Fields:
    logits: Tensor
    states: tuple[Tensor, ...]
    note: str = "text"


class Unknown(OrderedDict):
    """A mapping that PyTorch does not take apart."""


class Times(nn.Module):
    def __init__(self, factor: float, form: Any) -> None:
        super().__init__()
        self.factor, self.form = factor, form

    def forward(self, x: Tensor) -> Any:
        return self.form(logits=self.factor * x, states=(self.factor * x,))


@pytest.mark.parametrize("form", [dict, Unknown, Fields])
def test_all_numbers_are_mixed_whatever_holds_them(form: Any) -> None:
    found = OutputMix([Times(1.0, form), Times(3.0, form)], (0.25, 0.75))(torch.ones(2))
    assert type(found) is form
    logits, states = (found.logits, found.states) if form is Fields else (found["logits"], found["states"])
    assert logits.tolist() == states[0].tolist() == [2.5, 2.5]
