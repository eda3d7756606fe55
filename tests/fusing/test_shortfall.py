"""What falls short of what was asked for is an error, a warning or a line of the summary, and never silent."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import error, randomised

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Three linear layers; what stands behind the first and the second has a rule or not."""

    def __init__(
        self, first: Callable[[Tensor], Tensor] = torch.relu, second: Callable[[Tensor], Tensor] = torch.relu
    ) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.second(self.b(self.first(self.a(x)))))


def summed(x: Tensor) -> Tensor:
    """An operation without a rule that depends on the order of the channels."""
    return torch.relu(x.cumsum(-1))


def spread(x: Tensor) -> Tensor:
    """Channels may be reordered, but their number counts."""
    return x.softmax(-1)


def pair(*between: Callable[[Tensor], Tensor]) -> list[nn.Module]:
    return [randomised(Net(*between), seed) for seed in (0, 1)]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_plain_average_is_an_error_unless_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    models = pair(summed, summed)
    for alpha in (0.0, 0.4, 1.0):
        with pytest.raises(pf.ShortfallError, match="would be the plain average.*a: cumsum has no") as e:
            pf.fuse(models, X, alpha=alpha)
        assert "method='average'" in str(e.value)
    average = pf.fuse(models, X, method="average").model
    assert not warnings(caplog)
    result = pf.fuse(models, X, alpha=0.4, allow_shortfall=True)
    assert all(torch.equal(p, q) for p, q in zip(average.parameters(), result.model.parameters(), strict=True))
    assert "would be the plain average" in caplog.text
    assert "% of the parameters: cumsum has no rule)" in str(result.summary())


def test_linear_models_are_their_average() -> None:
    models = [randomised(nn.Sequential(nn.Linear(6, 4)), seed) for seed in (0, 1)]
    for alpha in (0.0, 1.0):
        fused = pf.fuse(models, X, alpha=alpha)
        assert error(fused.model(X), (models[0](X) + models[1](X)) / 2) < 1e-6


def test_a_large_part_that_is_only_averaged_is_a_warning_with_its_share(caplog: pytest.LogCaptureFixture) -> None:
    models = pair(torch.relu, summed)
    share = sum(p.numel() for p in models[0].b.parameters()) / sum(p.numel() for p in models[0].parameters())
    result = pf.fuse(models, X, alpha=0.4)
    expected = f"{share:.1%} of the parameters are only averaged, whatever alpha: b.weight, b.bias (cumsum has no rule)"
    assert warnings(caplog) == [expected]
    assert f"b.weight, b.bias ({share:.1%} of the parameters: cumsum has no rule)" in str(result.summary())
    caplog.clear()
    pf.fuse(models, X, alpha=0.0)
    assert "averaged as they stand, with nothing matched: b.weight, b.bias" in caplog.text
    caplog.clear()
    pf.fuse(models, X, method="average")
    assert not warnings(caplog)


def test_channels_that_are_matched_are_not_averaged_as_they_stand(caplog: pytest.LogCaptureFixture) -> None:
    models = pair(torch.relu, spread)
    assert pf.trace(models[-1], X)["b"].kind == "permutable"
    pf.fuse(models, X, alpha=0.0)
    assert not warnings(caplog)
    pf.fuse(models, X, alpha=0.4)
    assert "only averaged, whatever alpha: b.weight, b.bias (softmax runs across it)" in caplog.text


def test_a_small_part_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)
            self.gain = nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x * self.gain)))

    models = [randomised(Scaled(), seed) for seed in (0, 1)]
    result = pf.fuse(models, X, alpha=0.4)
    assert not warnings(caplog)
    assert "only averaged, whatever the size: gain (6.1% of the parameters: " in str(result.summary())


@pytest.mark.parametrize("between", [(torch.relu, summed), (spread, torch.relu)])
def test_an_ensemble_that_is_none_is_an_error(
    between: tuple[Callable[[Tensor], Tensor], ...], caplog: pytest.LogCaptureFixture
) -> None:
    models = pair(*between)
    with pytest.raises(pf.ShortfallError, match=r"alpha=1: .* not the ensemble: .* accepts it"):
        pf.fuse(models, X, alpha=1.0)
    caplog.clear()
    result = pf.fuse(models, X, alpha=1.0, allow_shortfall=True)
    assert warnings(caplog) == [result.shortfall]
    assert result.shortfall in str(result.summary())
    assert pf.fuse([models[0]] * 2, X, alpha=1.0).shortfall == ""  # nothing is missed here


def test_what_follows_the_last_layer_is_named() -> None:
    models = [nn.Sequential(m, nn.Softmax(-1)) for m in pair()]
    with pytest.raises(pf.ShortfallError, match="mixed before softmax.*without what follows their last layer"):
        pf.fuse(models, X, alpha=1.0)
    assert pf.fuse(models, X, alpha=0.4).shortfall == ""
    assert "mixed before softmax" in pf.fuse(models, X, alpha=1.0, allow_shortfall=True).shortfall


def test_nothing_to_prune_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    model = pair(spread, summed)[0]
    for size in ({"keep": 0.5}, {"budget": 0.5}):
        with pytest.raises(pf.ShortfallError, match="nothing can be pruned: no space can change its width"):
            pf.prune(model, X, **size)
    assert error(pf.prune(model, X, keep=1.0).model(X), model(X)) < 1e-6
    assert pf.prune(model, X, keep=0.5, allow_shortfall=True).count.ratio == 1.0
    assert "nothing can be pruned" in caplog.text


def test_a_frontier_keeps_the_reason() -> None:
    models, labels = pair(torch.relu, summed), torch.zeros(4, dtype=torch.long)
    options = {"evaluate": [(X, labels)], "alphas": (0.0, 1.0), "details": False, "progress": False}
    failed = [p for p in pf.frontier(models, X, **options).points if p.score is None]
    assert [p.alpha for p in failed] == [1.0]
    assert "not the ensemble" in str(failed[0].error)
    assert all(p.score is not None for p in pf.frontier(models, X, allow_shortfall=True, **options).points)
