"""One pass over the data serves all matching; and attention is matched by activations."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import permuted_twin, randomised

BATCHES = 4
DATA = [torch.randn(9, 10, generator=torch.Generator().manual_seed(k)) for k in range(BATCHES)]
LABELLED = [(torch.randn(3, 10), torch.zeros(3).long())]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def counted(call: Any, models: int = 2) -> int:
    """How often the sources run over the data; other inputs (examples, labelled batches) have other sizes.

    Results are copies of a source, hooks included: their runs (recalibration, refit) do not count.
    """
    sources = [randomised(net(), seed) for seed in range(models)]
    runs = []

    def count(model: nn.Module, inputs: tuple[Tensor]) -> None:
        if len(inputs[0]) == 9 and any(model is source for source in sources):
            runs.append(model)

    for model in sources:
        model.register_forward_pre_hook(count)
    call(sources)
    return len(runs)


def fuse(**options: Any) -> Any:
    return lambda models: pf.fuse(models, torch.randn(2, 10), data=DATA, **options)


def frontier(**options: Any) -> Any:
    return lambda models: pf.frontier(
        models, torch.randn(2, 10), evaluate=LABELLED, data=DATA, progress=False, **options
    )


ALPHAS = (0, 0.2, 0.4, 0.6, 0.8, 1)


@pytest.mark.parametrize(
    "call",
    [
        fuse(),
        fuse(features="both"),
        fuse(method="cluster"),
        fuse(method="zip"),
        fuse(budget=1.4),
        fuse(method="cluster", budget=1.4),
        fuse(mix="auto", evaluate=LABELLED),
        fuse(method="cluster", mix="auto", evaluate=LABELLED),
        frontier(alphas=ALPHAS),
        frontier(alphas=ALPHAS, features="weights"),
        frontier(alphas=ALPHAS, methods=("cluster",), mixes=(0.5, 0.3)),
        frontier(alphas=ALPHAS, methods=("partial-ot", "cluster", "zip", "magnitude+ot"), mixes=(0.5, 0.3)),
        frontier(alphas=(0.2,), methods={"small": {"budget": 1.2}, "large": {"budget": 1.6}}),
    ],
    ids=[
        "partial-ot",
        "both",
        "cluster",
        "zip",
        "budget",
        "cluster-budget",
        "mix",
        "cluster-mix",
        "frontier",
        "frontier-weights",
        "frontier-cluster-mixes",
        "frontier-methods",
        "frontier-budgets",
    ],
)
def test_one_pass_over_the_sources(call: Any) -> None:
    assert counted(call) == 2 * BATCHES


def test_weights_need_no_pass_and_a_third_model_only_its_own() -> None:
    assert counted(fuse(features="weights")) == 0
    assert counted(fuse(method="average")) == 0
    assert counted(fuse(alpha=1.0)) == 0
    assert counted(fuse(), models=3) == 3 * BATCHES
    assert counted(lambda models: pf.prune(models[0], torch.randn(2, 10), data=DATA), models=1) == BATCHES
    assert counted(lambda models: pf.prune(models[0], torch.randn(2, 10), data=DATA, budget=0.5), models=1) == BATCHES


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x)).mean(1))


def test_attention_and_stream_are_matched_by_activations(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model, data = randomised(Encoder(), 0).eval(), [torch.randn(16, 5, 6) for _ in range(2)]
    blueprint = pf.trace(model, data[0])
    twin = permuted_twin(model, data[0], 3)
    free = [s.name for s in blueprint if s.kind != "rigid"]
    assert free == ["embed", "layer.self_attn", "layer.self_attn#2", "layer.linear1"]
    for method in ("partial-ot", "cluster"):
        result = pf.fuse([twin, model], data[0], data=data, alpha=0.0, method=method, blueprint=blueprint)
        assert result.unseen == ()
        with torch.no_grad():
            assert torch.allclose(result.model.eval()(data[1]), model(data[1]), atol=1e-4)
    costs = {s.name: s.cost for s in pf.fuse([twin, model], data[0], data=data, alpha=0.0).summary().spaces}
    assert all(abs(costs[name]) < 1e-4 for name in free), (
        "one minus the correlation of a channel with its own copy is 0"
    )
    assert "no activations" not in caplog.text


class Unobserved(nn.Module):
    """Its second layer calls ATen directly, past what can be observed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(10, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.ops.aten.linear.default(self.first(x).relu(), self.second.weight, self.second.bias).relu()
        return torch.ops.aten.linear.default(y, self.last.weight, self.last.bias)


@pytest.mark.parametrize("method", ["partial-ot", "cluster"])
def test_a_space_without_activations_is_named(method: str, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    models = [Unobserved().eval() for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        result = pf.fuse(models, DATA[0], data=DATA, alpha=0.3, method=method, site="pre")
    assert result.unseen == ("second",)
    assert "no activations were seen of second: matched by weights instead" in caplog.text
    assert "since no activations were seen: second" in str(result.summary())
    assert pf.fuse(models, DATA[0], alpha=0.3, method=method).unseen == ()
