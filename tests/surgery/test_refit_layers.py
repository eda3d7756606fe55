"""Refitting one layer, and parts of the machinery, against NumPy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from refits import refitted
from torch import Tensor, nn
from torch.nn import functional as F

import partialfusion as pf
from partialfusion.surgery.refit import RIDGE, normal_equations
from partialfusion.surgery.refit.fit import fit
from partialfusion.surgery.refit.normal_equations import NormalEquations
from partialfusion.surgery.refit.unfold import Layout, Window, grouped, inputs
from zoo import randomised

# ---- one layer against NumPy ----


def ridge_oracle(x: np.ndarray, t: np.ndarray, anchor: np.ndarray, ridge: float, intercept: bool) -> np.ndarray:
    """(outputs × inputs) by NumPy's least squares on rows for the shrinkage below the samples."""
    if intercept:
        x, t = x - x.mean(0), t - t.mean(0)
    root = np.sqrt(max(ridge, normal_equations.PRIOR / len(x)) * np.mean(np.sum(x**2, 0)))
    rows = np.concatenate([x, root * np.eye(x.shape[1])])
    return np.linalg.lstsq(rows, np.concatenate([t, root * anchor.T]), rcond=None)[0].T


def design_by_probing(layer: Callable[[Tensor], Tensor], shape: Sequence[int]) -> np.ndarray:
    """(samples × entries): what every single entry of a weight contributes to the first output channel."""
    columns = []
    for entry in range(int(np.prod(shape))):
        weight = torch.zeros(int(np.prod(shape)), dtype=torch.float64)
        weight[entry] = 1.0
        columns.append(layer(weight.view(*shape)).movedim(1, -1).flatten().numpy())
    return np.stack(columns, 1)


LINEAR_MAPS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 5), (40, 6)),
    "linear on sequences": (nn.Linear(6, 5), (8, 7, 6)),
    "conv1d": (nn.Conv1d(6, 5, 3, padding=2, dilation=2), (6, 6, 9)),
    "conv2d": (nn.Conv2d(6, 5, 3, padding=1), (4, 6, 5, 5)),
    "strided": (nn.Conv2d(6, 5, (3, 2), stride=(2, 3), padding=(2, 1)), (6, 6, 9, 8)),
    "dilated": (nn.Conv2d(6, 5, 3, padding=2, dilation=(2, 1)), (6, 6, 7, 6)),
    "same": (nn.Conv2d(6, 5, (2, 3), padding="same"), (6, 6, 5, 5)),
    "reflected": (nn.Conv2d(6, 5, 3, padding=1, padding_mode="reflect"), (5, 6, 5, 5)),
    "conv3d": (nn.Conv3d(6, 5, 2, padding=1), (4, 6, 3, 4, 3)),
    "transposed": (nn.ConvTranspose2d(6, 5, 3, stride=2, padding=1, output_padding=1), (5, 6, 4, 4)),
    "transposed, dilated": (nn.ConvTranspose1d(6, 5, 3, stride=3, padding=5, dilation=2), (9, 6, 9)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", LINEAR_MAPS)
def test_the_last_layer_is_the_ridge_solution(kind: str, bias: bool) -> None:
    """The first layer is a pointwise map of the input, which merging gets right; the second one is fitted."""
    layer, shape = LINEAR_MAPS[kind]
    channels = 1 if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)) else -1

    def build(seed: int) -> nn.Module:
        first: nn.Module = nn.Linear(3, 6)
        if channels == 1:
            first = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[len(shape)](3, 6, 1)
        second = copy.deepcopy(layer)
        if not bias:
            second.register_parameter("bias", None)
        return randomised(nn.Sequential(first, nn.Tanh(), second).double(), seed)

    generator = torch.Generator().manual_seed(1)
    inner = [3 if d == channels % len(shape) else n for d, n in enumerate(shape)]
    x = torch.randn(inner, generator=generator, dtype=torch.float64)
    models, ridge = [build(0), build(1)], 0.05
    fused = pf.fuse(models, x, alpha=0.5)
    merged = fused.model[2].weight.detach().clone()
    refitted(fused, models, [(x[:3],), (x[3:],)], ridge=ridge)

    second = fused.model[2]
    turned = isinstance(second, (nn.ConvTranspose1d, nn.ConvTranspose2d))
    with torch.no_grad():
        hidden = fused.model[1](fused.model[0](x))
        goal = ((models[0](x) + models[1](x)) / 2).movedim(channels, -1).flatten(0, -2).numpy()
    one = list(second.weight.shape)
    one[1 if turned else 0] = 1

    def probe(weight: Tensor) -> Tensor:
        with torch.no_grad():
            if isinstance(second, nn.Linear):
                return F.linear(hidden, weight).movedim(-1, 1)
            if turned:
                function = {3: F.conv_transpose1d, 4: F.conv_transpose2d}[len(shape)]
                return function(
                    hidden, weight, None, second.stride, second.padding, second.output_padding, 1, second.dilation
                )
            return second._conv_forward(hidden, weight, None)

    design = design_by_probing(probe, one)
    rows = lambda w: w.movedim(1 if turned else 0, 0).flatten(1).numpy()  # noqa: E731
    expected = ridge_oracle(design, goal, rows(merged), ridge, bias)
    assert rows(second.weight.detach()) == pytest.approx(expected, abs=1e-8)
    if bias:
        shift = goal.mean(0) - expected @ design.mean(0)
        assert second.bias.detach().numpy() == pytest.approx(shift, abs=1e-8)


# ---- parts of the machinery ----


@pytest.mark.parametrize("turned", [False, True], ids=["convolution", "transposed"])
@pytest.mark.parametrize("groups", [2, 6])
def test_groups_are_fitted_one_by_one(groups: int, turned: bool) -> None:
    """Against a regression per group, designs by probing the convolution itself."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    read, per = 6 // groups, 12 // groups
    x, merged = draw(5, 6, 6, 5), draw(*((6, per, 3, 2) if turned else (12, read, 3, 2)))
    options = {"stride": (2, 1), "padding": (1, 0), "groups": groups}
    function, layout, window = F.conv2d, Layout(0, -3, groups), Window.convolution((3, 2), (2, 1), (1, 0), 1)
    if turned:
        function, layout = F.conv_transpose2d, Layout(1, -3, groups, flipped=True)
        window = Window.transposed((3, 2), (2, 1), (1, 0), 0, 1)
    goal = draw(*function(x, merged, **options).shape)  # type: ignore[arg-type]
    equations = NormalEquations(intercept=True)
    rows = layout.rows(goal)
    (design,) = inputs(layout, window, x, None)
    equations.add(design, grouped(rows, groups))
    whole = torch.arange(per), torch.arange(design.shape[2])
    found = fit(equations.system(), layout.matrix(merged), [whole], 0.1, intercept=True, scale=None)
    weight = layout.weight(found.matrix, merged)
    assert layout.outputs(merged) == 12
    assert torch.equal(layout.weight(layout.matrix(merged), merged), merged)

    def of_group(stored: Tensor, g: int) -> Tensor:
        """(outputs × inputs × kernel) of one group, as a view."""
        return stored[g * read : (g + 1) * read].transpose(0, 1) if turned else stored[g * per : (g + 1) * per]

    for g in range(groups):

        def probe(entry: Tensor, g: int = g) -> Tensor:
            full = torch.zeros_like(merged)
            of_group(full, g)[0] = entry[0]
            return function(x, full, **options)[:, g * per : g * per + 1]  # type: ignore[arg-type]

        own = design_by_probing(probe, (1, read, 3, 2))
        targets = rows[:, g * per : (g + 1) * per].numpy()
        expected = ridge_oracle(own, targets, of_group(merged, g).flatten(1).numpy(), 0.1, True)
        assert of_group(weight, g).flatten(1).numpy() == pytest.approx(expected, abs=1e-10)
        assert found.shift[g].numpy() == pytest.approx(targets.mean(0) - expected @ own.mean(0), abs=1e-10)


@pytest.mark.parametrize(("groups", "channels"), [(6, 6), (3, 9)], ids=["depthwise", "in groups"])
def test_transposed_convolutions_in_groups_come_nearer_to_their_sources(groups: int, channels: int) -> None:
    def network(seed: int) -> nn.Module:
        layer = nn.ConvTranspose2d(6, channels, 3, stride=2, groups=groups)
        end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)
        return randomised(nn.Sequential(nn.Conv2d(2, 6, 3), nn.Tanh(), layer, nn.Tanh(), *end), seed)

    models, x = [network(0), network(1)], torch.randn(24, 2, 6, 6, generator=torch.Generator().manual_seed(5))
    result = pf.fuse(models, x, alpha=0.34, norm="analytic")
    fitted = pf.refit(result, [x])
    assert fitted.unrefitted == ()
    each = torch.eye(channels // groups)
    with torch.no_grad():
        writes = [torch.kron(torch.from_numpy(p.write_matrix()).float(), each) for p in result.plan["0"].pairs]
        goal = sum(torch.einsum("oc,nchw->nohw", w, m[:3](x)) for w, m in zip(writes, models, strict=True))
        before, after = ((r.model[:3](x) - goal).square().mean((0, 2, 3)) for r in (result, fitted))
    isolated = torch.from_numpy(result.plan["0"].support().sum(1) == 1).repeat_interleave(channels // groups)
    assert (after[~isolated] < 0.99 * before[~isolated]).all()
    assert after[isolated].max() < 1e-10, "isolated channels were right before"


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("samples", [5, 30])
def test_fewer_samples_than_inputs_are_solved_in_the_dual(
    samples: int, intercept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, t = (torch.randn(2, samples, n, generator=generator, dtype=torch.float64) + 1 for n in (12, 3))
    merged = torch.randn(2, 3, 12, generator=generator, dtype=torch.float64)
    parts = [(torch.tensor([0, 2]), torch.arange(12)), (torch.tensor([1]), torch.tensor([0, 3, 4, 7]))]
    found = []
    for largest in (1 << 28, 2 * 12 * samples):  # the second leaves no room for products of 30 samples
        monkeypatch.setattr(normal_equations, "LARGEST", largest if samples == 30 else 1 << 28)
        equations = NormalEquations(intercept=intercept)
        for chunk in range(0, samples, 4):
            equations.add(x[:, chunk : chunk + 4], t[:, chunk : chunk + 4])
        system = equations.system()
        assert (system.gram is None) == (samples == 5)
        found.append(fit(system, merged, parts, 0.1, intercept=intercept, scale=None))
    for g in range(2):
        rows, t_rows = x[g].numpy(), t[g].numpy()
        expected = merged[g].numpy().copy()
        expected[[0, 2]] = ridge_oracle(rows, t_rows[:, [0, 2]], expected[[0, 2]], 0.1, intercept)
        own = [0, 3, 4, 7]
        rest = np.delete(np.arange(12), own)
        left = t_rows[:, [1]] - rows[:, rest] @ merged[g, 1, rest].numpy()[:, None]
        expected[1, own] = ridge_oracle(rows[:, own], left, expected[[1]][:, own], 0.1, intercept)[0]
        for affine in found:
            assert affine.matrix[g].numpy() == pytest.approx(expected, abs=1e-9)


class Again(nn.Module):
    """A weight that is used on two inputs and whose outputs go nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(3, 8)
        self.shared = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(torch.tanh(self.first(x))) * self.shared(torch.tanh(self.second(x[:, :3])))


def test_a_weight_used_twice_is_fitted_to_both_uses() -> None:
    models = [randomised(Again(), seed).double() for seed in (0, 1)]
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fused = pf.fuse(models, x, alpha=0.4)
    merged = fused.model.shared.weight.detach().clone().numpy()
    refitted(fused, models, [(x[:25],), (x[25:],)])
    with torch.no_grad():
        hidden = lambda m: torch.cat([torch.tanh(m.first(x)), torch.tanh(m.second(x[:, :3]))])  # noqa: E731
        goal = sum(m.shared(hidden(m)) for m in models).numpy() / 2
        expected = ridge_oracle(hidden(fused.model).numpy(), goal, merged, RIDGE, True)
    assert fused.model.shared.weight.detach().numpy() == pytest.approx(expected, abs=1e-8)


class TransposedKernel(nn.Module):
    """Stores the kernel of its first convolution with inputs before outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 6, 3, 3) / 5)
        self.last = nn.Conv2d(6, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.conv2d(x, self.kernel.transpose(0, 1)).relu()).mean((2, 3))


def test_a_kernel_in_another_order_stays_as_merged(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    models, x = [TransposedKernel().eval() for _ in range(2)], torch.randn(32, 3, 8, 8)
    plain = pf.fuse(models, x, alpha=0.0, data=[x])
    fitted = pf.fuse(models, x, alpha=0.0, data=[x], refit=True)
    assert plain.unseen == ()
    assert torch.equal(plain.model.kernel, fitted.model.kernel)
    assert not torch.equal(plain.model.last.weight, fitted.model.last.weight)
    assert "kernel not refitted" in caplog.text
