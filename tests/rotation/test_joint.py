"""Joint alignment by rotations: never worse from step to step, and exact where something is exact."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import partialfusion as pf
from partialfusion.fusing.align.joint import Descent, Similarities
from partialfusion.kernels import Coupling

from .networks import Transformer, rotated_by_hand, samples
from .test_rotation import free, fused, gap, output, traced


class Watched(Descent):
    """Writes down the objective after every step."""

    def run(self) -> list[float]:
        self.steps: list[float] = []
        return super().run()

    def _improve(self, spaces: tuple[str, ...]) -> None:
        super()._improve(spaces)
        self.steps.append(self.objective())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["layer norm", "RMS norm"])
def test_no_step_makes_it_worse(kind: str, seed: int) -> None:
    """Streams and heads are rotated, heads paired and MLPs matched, from a poor start and by similarities at random."""
    models = [Transformer(2 * seed + k, kind=kind).double() for k in range(2)]
    blueprint, found = traced(kind), free(Transformer(kind=kind))
    folded = [found.folded(m, blueprint) for m in models]
    x = samples(8).double()
    before = [output(m, x) for m in folded]
    couplings = {s.name: Coupling.identity(s.width) for s in blueprint}
    rng = np.random.default_rng(seed)
    others = ["blocks.0.up", "blocks.1.up"]
    known = Similarities(
        {s: 0.1 * rng.standard_normal([blueprint[s].width] * 2) for s in found.spaces},
        {s: 0.1 * rng.standard_normal([blueprint[s].width] * 2) for s in others},
        frozenset({"embed"} if kind == "layer norm" else ()),
    )
    descent = Watched(folded, [blueprint] * 2, couplings, known)
    history = descent.run()
    assert min(np.diff(descent.steps)) > -1e-12 * abs(history[-1])
    assert history[-1] > history[0]
    assert len(descent.steps) > 3 * len(history)
    for turn in descent.turns.values():
        assert np.allclose(turn @ turn.T, np.eye(len(turn)), atol=1e-6)
    for space in others:
        assert (descent.couplings[space].cols != couplings[space].cols).any()
    for model, expected in zip(folded, before, strict=True):
        assert gap(output(model, x), expected) < 1e-5


def test_a_greedy_alignment_is_one_pass() -> None:
    """Both are fusions of the same models, and only one of them looks at the weights."""
    models = [Transformer(0), Transformer(1)]
    jointly, once = (fused(models, alpha=0.0, align=align) for align in ("fixed-point", "greedy"))
    assert jointly.rotated == once.rotated
    ours, theirs = (r.rotations.turns[0]["embed"] for r in (jointly, once))
    assert float((ours - theirs).abs().max()) > 1e-2


class Tied(nn.Module):
    """A language model whose last layer is its embedding, behind a norm with a scale and a shift."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        inner = Transformer(seed)
        self.words, self.blocks, self.norm = nn.Embedding(9, 12), inner.blocks, inner.norm
        self.head = nn.Linear(12, 9, bias=False)
        self.head.weight = self.words.weight
        torch.manual_seed(seed)
        nn.init.normal_(self.words.weight)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.words(x))))


def test_a_tied_embedding_is_taken_apart_for_a_rotation(caplog: pytest.LogCaptureFixture) -> None:
    words = torch.randint(9, (8, 6), generator=torch.Generator().manual_seed(0))
    models = [Tied(0), Tied(1)]
    states = [copy.deepcopy(m.state_dict()) for m in models]
    how = {"method": "partial-ot", "data": [words], "blueprint": pf.trace(models[1], words)}
    result = pf.fuse(models, words, alpha=0.999, similarity="rotation", **how)
    assert "words" in result.rotated
    assert "head.weight is no longer tied to words.weight" in caplog.text
    assert result.changes
    assert gap(output(result.model, words), (output(models[0], words) + output(models[1], words)) / 2) < 1e-4
    itself = pf.fuse([models[1], models[1]], words, alpha=0.0, similarity="rotation", **how)
    assert gap(output(itself.model, words), output(models[1], words)) < 1e-4
    channels = pf.fuse(models, words, alpha=0.0, **how).model
    assert channels.head.weight is channels.words.weight
    for model, state in zip(models, states, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_twin_is_recovered_from_noise_and_weights() -> None:
    model = Transformer()
    result = fused([rotated_by_hand(model), model], alpha=0.2, data=None, features="weights")
    assert gap(output(result.model), output(model)) < 1e-4


class Words(nn.Module):
    """The mean of some words, a rotatable space, and hidden channels of which most are silent."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.hidden, self.output = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.hidden.bias.copy_(torch.tensor([2.0, 2.0] + [-6.0] * 6))
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.hidden(self.words(x).mean(1))))


@pytest.mark.parametrize("method", ["partial-ot", "interpolate"])
def test_silent_channels_do_not_lead_a_twin_astray(method: str) -> None:
    """Behind the activation function nothing tells the silent channels apart."""
    model, twin = Words(), Words()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        twin.hidden.weight.copy_(model.hidden.weight[order])
        twin.hidden.bias.copy_(model.hidden.bias[order])
        twin.output.weight.copy_(model.output.weight[:, order])
    generator = torch.Generator().manual_seed(2)
    data = [torch.randint(11, (8, 6), generator=generator) for _ in range(3)]
    active = torch.relu(model.hidden(model.words(torch.cat(data)).mean(1))).amax(0) > 0
    assert int((~active).sum()) > 2
    result = pf.fuse([twin, model], data=data, alpha=0.0, method=method, similarity="rotation", mix=0.3)
    assert result.rotated == ("words",)
    unseen = torch.randint(11, (8, 6), generator=generator)
    assert torch.allclose(result.model(unseen), model(unseen), atol=1e-5)


def test_where_everything_is_fused_weights_decide_on_mlps_too() -> None:
    """The activations alone decide in one pass; what the descent finds can only be more alike by the weights."""
    models = [Transformer(0), Transformer(1)]
    joint, once = (fused(models, alpha=0.0, align=align) for align in ("fixed-point", "greedy"))
    ours, theirs = joint.equivalents

    def alike(result: pf.Fusion, block: int) -> float:
        a, b = (torch.from_numpy(p.write_matrix().argmax(0)).argsort() for p in result.plan[f"blocks.{block}.up"].pairs)
        up, down = (
            [m.get_parameter(f"blocks.{block}.{layer}.weight").detach() for m in (ours, theirs)]
            for layer in ("up", "down")
        )
        inner = [(x[a] * y[b]).sum() / (x.norm() * y.norm()) for x, y in (up, [w.T for w in down])]
        return float(sum(inner))

    found = [[alike(result, block) for block in range(2)] for result in (joint, once)]
    assert all(x > y + 0.05 for x, y in zip(*found, strict=True)), found
