"""Entries of an output that are not the result keep their meaning: models are mixed behind their last layer, too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(5))


class Detector(nn.Module):
    """Two heads on one trunk; the second may be normed, or a single layer."""

    def __init__(self, seed: int, box: str = "layers") -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk, self.scores = nn.Linear(6, 12), nn.Linear(12, 4)
        ends = {"layer": [], "layers": [nn.Linear(2, 3)], "norm": [nn.LayerNorm(2)]}[box]
        self.boxes = nn.Sequential(nn.Linear(12, 2), *ends)
        self.eval()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.trunk(x))
        return {"scores": self.scores(hidden), "boxes": self.boxes(hidden)}


@pytest.mark.parametrize("box", ["layer", "layers"])
def test_at_alpha_1_every_head_is_the_ensemble(box: str) -> None:
    models = [Detector(0, box), Detector(1, box)]
    found = pf.fuse(models, X, alpha=1.0, mix=[0.3, 0.7], output="scores").model(X)
    first, second = (m(X) for m in models)
    for name, value in found.items():
        assert torch.allclose(value, 0.3 * first[name] + 0.7 * second[name], atol=1e-6)


@pytest.mark.parametrize("box", ["layer", "layers", "norm"])
def test_other_heads_keep_their_widths(box: str) -> None:
    blueprint = pf.trace(Detector(0, box), X, output="scores")
    last = {"layer": "boxes.0", "layers": "boxes.1", "norm": "boxes.0"}[box]
    assert (blueprint[last].kind, blueprint[last].reasons) == ("rigid", ("output",))
    assert blueprint["trunk"].kind == "elastic"
    assert ("boxes.0" in {s.name for s in blueprint if s.kind == "elastic"}) == (box == "layers")
    smaller = pf.prune(Detector(0, box), X, keep=0.5, output="scores").model(X)
    assert {name: value.shape for name, value in smaller.items()} == {
        name: value.shape for name, value in Detector(0, box)(X).items()
    }


def test_a_last_layer_with_groups_ties_hidden_channels_to_outputs() -> None:
    """They can only be averaged, which is no mix of the outputs."""
    torch.manual_seed(0)
    a, b = (nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 1, groups=2)).eval() for _ in range(2))
    x = torch.randn(2, 3, 6)
    blueprint = pf.trace(b, x)
    assert set(blueprint.averaged) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    for alpha in (0.4, 1.0):
        with pytest.raises(pf.ShortfallError, match="grouped with the network's output"):
            pf.fuse([a, b], x, alpha=alpha, blueprint=blueprint)
