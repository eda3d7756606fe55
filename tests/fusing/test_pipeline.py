"""The pipeline: what is demoted on the way, and what stays as it was matched."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.fusing.align import Aligner
from partialfusion.fusing.pruning import UnionPruner


class HardCoded(nn.Module):
    """Its first space is cut at a place that the code names, so it cannot be widened; the second can."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(4, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last(self.second(x[:, :4] + x[:, 4:8]).relu())


def pair() -> list[nn.Module]:
    torch.manual_seed(0)
    return [HardCoded().eval() for _ in range(2)]


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[Any]:
    calls: list[Any] = []
    original = getattr(owner, method)

    def count(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return original(*args, **options)

    monkeypatch.setattr(owner, method, count)
    return calls


@pytest.mark.parametrize(
    "options", [{}, {"budget": 1.6}, {"method": pf.Cluster("ward")}], ids=["alpha", "budget", "cluster"]
)
def test_a_space_that_does_not_follow_is_demoted_and_the_others_stay_matched(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    models, x = pair(), torch.randn(32, 6)
    templates = counted(monkeypatch, UnionPruner if "method" in options else Aligner, "template")
    size = {} if "budget" in options else {"alpha": 0.5}
    result = pf.fuse(models, x, data=[x], check=False, **size, **options)
    assert len(templates) == 1
    assert "first cannot change width" in caplog.text
    assert [s.kind for s in result.blueprint] == ["permutable", "elastic", "rigid"]
    assert any(
        "does not follow" in reason or "did not come back" in reason for reason in result.blueprint["first"].reasons
    )
    assert result.plan["first"].width == 4  # two positions each
    assert result.plan["second"].width > 10
    if "budget" not in options:
        checked = pf.fuse(models, x, data=[x], **size, **options)
        assert [s.kind for s in checked.blueprint] == ["permutable", "elastic", "rigid"]
        for one, other in zip(result.plan["second"].pairs, checked.plan["second"].pairs, strict=True):
            np.testing.assert_allclose(one.write_matrix(), other.write_matrix())


def test_a_space_that_does_not_follow_is_demoted_before_latencies_are_measured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    models, x = pair(), torch.randn(32, 6)
    result = pf.fuse(models, x, budget=pf.Budget(latency=8.0), check=False)
    assert "first cannot change width" in caplog.text
    assert [s.kind for s in result.blueprint] == ["permutable", "elastic", "rigid"]
    assert result.latency is not None


def test_a_space_of_one_model_that_does_not_follow_keeps_its_channels() -> None:
    model, x = pair()[0], torch.randn(32, 6)
    result = pf.prune(model, x, keep=0.5, data=[x], check=False)
    assert [s.kind for s in result.blueprint] == ["permutable", "elastic", "rigid"]
    assert [result.plan[s].width for s in ("first", "second")] == [4, 5]
    with torch.no_grad():
        assert torch.equal(result.model.first(x), model.first(x))


def test_all_alphas_start_from_one_full_alignment(monkeypatch: pytest.MonkeyPatch) -> None:
    from partialfusion.fusing.align import aligner

    calls: list[Any] = []
    original = aligner.fixed_point
    monkeypatch.setattr(aligner, "fixed_point", lambda *a, **o: calls.append(a) or original(*a, **o))
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
    x = torch.randn(4, 6)
    alphas = (0.0, 0.25, 0.5, 0.75)
    frontier = pf.frontier(models, x, evaluate=lambda m: 0.0, alphas=alphas, progress=False)
    assert len(calls) == 1
    monkeypatch.undo()
    for point in (p for p in frontier.points if p.kind == "fused"):
        assert point.cost == pytest.approx(pf.fuse(models, x, alpha=point.alpha).summary().cost)


def test_a_budget_fits_and_matches_at_the_sizes_it_found() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
    x = torch.randn(16, 6)
    result = pf.fuse(models, x, budget=1.4, data=[x])
    assert result.count.ratio <= 1.4
    again = pf.fuse(models, x, alpha=result.recipe.alpha, data=[x])
    for one, other in zip(result.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("features", ["activations", "weights", "both"])
def test_all_alphas_of_a_frontier_are_solved_in_one_run(features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for each space that is free, whatever the number of alphas; and the fusions are those of `fuse`."""
    separate = sys.modules["partialfusion.fusing.align.separate"]  # the package has a function of this name

    calls: list[Any] = []
    original = separate.couplings
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
    x, alphas = torch.randn(16, 6), (0.25, 0.5, 0.75)
    blueprint = pf.trace(models[-1], x)
    outputs: list[Tensor] = []

    def evaluate(model: nn.Module) -> float:
        outputs.append(model(x))
        return 0.0

    monkeypatch.setattr(separate, "couplings", lambda cost, *a, **o: calls.append(cost) or original(cost, *a, **o))
    options = {"features": features, "data": [x]}
    pf.frontier(models, x, evaluate=evaluate, alphas=alphas, blueprint=blueprint, progress=False, **options)
    starts = 2 if features == "both" else 0  # the search with nothing isolated starts from the activations
    assert len(calls) == 2 + starts
    monkeypatch.undo()
    for alpha, output in zip(alphas, outputs[3:], strict=True):
        alone = pf.fuse(models, x, alpha=alpha, blueprint=blueprint, **options)
        assert torch.allclose(alone.model(x), output, atol=1e-6)
