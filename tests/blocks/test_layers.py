"""Block layers against dense layers with the same weights."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from partialfusion.blocks.layer import BlockLayer, Group, row_groups
from partialfusion.blocks.layers import BLOCK_FORMS
from partialfusion.errors import DataError

SORTED = np.array([[1, 0]] * 3 + [[1, 1]] * 4 + [[0, 1]] * 2, bool)
THREE = np.array([[1, 0, 0]] * 2 + [[0, 1, 0]] * 2 + [[1, 1, 1]] * 3 + [[0, 0, 1]] * 2, bool)
MIXED = np.random.default_rng(0).random((30, 3)) < 0.5
MIXED[~MIXED.any(1), 0] = True
SUPPORTS = {"two models": SORTED, "three models": THREE, "mixed": MIXED, "doubled": np.concatenate([SORTED, SORTED])}
supports = pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS.keys())

CONVOLUTIONS = {
    "1d": (partial(nn.Conv1d, kernel_size=3, padding=1), (7,)),
    "1d pointwise": (partial(nn.Conv1d, kernel_size=1), (7,)),
    "2d": (partial(nn.Conv2d, kernel_size=3), (6, 5)),
    "2d strided": (partial(nn.Conv2d, kernel_size=3, stride=2, padding=1), (6, 5)),
    "2d dilated": (partial(nn.Conv2d, kernel_size=(3, 1), padding=(2, 0), dilation=2), (6, 5)),
    "2d same": (partial(nn.Conv2d, kernel_size=3, padding="same"), (6, 5)),
    "2d circular": (partial(nn.Conv2d, kernel_size=3, padding=1, padding_mode="circular", stride=2), (6, 5)),
    "2d reflect same": (partial(nn.Conv2d, kernel_size=3, padding="same", padding_mode="reflect"), (6, 5)),
    "2d pointwise": (partial(nn.Conv2d, kernel_size=1, bias=False), (6, 5)),
    "2d pointwise strided": (partial(nn.Conv2d, kernel_size=1, stride=(2, 3)), (6, 5)),
    "2d pointwise padded": (partial(nn.Conv2d, kernel_size=1, padding=1), (6, 5)),
    "3d": (partial(nn.Conv3d, kernel_size=(1, 3, 3), padding="valid", bias=False), (3, 4, 4)),
    "3d pointwise": (partial(nn.Conv3d, kernel_size=1, stride=2), (3, 4, 4)),
}
convolutions = pytest.mark.parametrize(("build", "positions"), CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())


def mask_of(rows: np.ndarray, cols: np.ndarray) -> Tensor:
    """(out × in) where a row and a column have a model in common, entry by entry."""
    return torch.tensor([[any(a and b for a, b in zip(r, c, strict=True)) for c in cols] for r in rows])


def pair(dense: nn.Linear | nn.Conv2d, support: np.ndarray, seed: int = 0) -> tuple[nn.Module, BlockLayer, Tensor]:
    """A dense layer with zero blocks, its block form, and the mask of the blocks."""
    generator = torch.Generator().manual_seed(seed)
    mask = mask_of(support, support).view(*dense.weight.shape[:2], *[1] * (dense.weight.dim() - 2))
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        dense.weight.mul_(mask)
    return dense, BLOCK_FORMS[type(dense)](dense, row_groups(support, support)), mask.expand_as(dense.weight)


def inputs(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def same(block: nn.Module, dense: nn.Module, x: Tensor) -> bool:
    """With gradients (products joined) and without (products written in place); for a matrix, sums may differ."""
    expected = dense(x)
    with torch.no_grad():
        outputs = [block(x)]
    outputs.append(block(x))
    return all(o.shape == expected.shape and torch.allclose(o, expected, atol=1e-5, rtol=1e-5) for o in outputs)


@supports
def test_groups_cover_what_has_a_model_in_common_and_nothing_else(support: np.ndarray) -> None:
    groups = row_groups(support, support)
    covered = torch.zeros(len(support), len(support), dtype=torch.int64)
    for g in groups:
        covered[np.ix_(g.rows, g.cols)] += 1
    assert torch.equal(covered, mask_of(support, support).long())
    assert sorted(np.concatenate([g.rows for g in groups])) == list(range(len(support)))


def test_rows_that_read_the_same_form_one_group() -> None:
    everyone = np.ones((5, 2), bool)
    assert [(len(g.rows), len(g.cols)) for g in row_groups(SORTED, everyone)] == [(9, 5)]
    assert [(len(g.rows), len(g.cols)) for g in row_groups(everyone, SORTED)] == [(5, 9)]


@supports
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)])
def test_linear(support: np.ndarray, bias: bool, shape: tuple[int, ...]) -> None:
    n = len(support)
    dense, block, _ = pair(nn.Linear(n, n, bias=bias), support)
    x = inputs(*shape, n)
    assert same(block, dense, x)
    if len(shape) == 1:
        assert same(block, dense, inputs(n, *shape).t())


@supports
@convolutions
def test_convolution(build: partial, positions: tuple[int, ...], support: np.ndarray) -> None:
    n = len(support)
    dense, block, _ = pair(build(n, n), support)
    assert same(block, dense, inputs(2, n, *positions))
    assert same(block, dense, inputs(n, *positions))
    if len(positions) > 1:
        form = torch.channels_last if len(positions) == 2 else torch.channels_last_3d
        x = inputs(2, n, *positions).to(memory_format=form)
        assert same(block, dense, x)
        if block.pointwise:
            with torch.no_grad():
                assert block(x).is_contiguous(memory_format=form)


@supports
def test_it_holds_the_blocks_only_and_gives_them_back(support: np.ndarray) -> None:
    n = len(support)
    for layer in (nn.Linear(n, n), nn.Conv2d(n, n, 3, 2, padding_mode="reflect", bias=False)):
        dense, block, mask = pair(layer, support)
        bias = 0 if dense.bias is None else n
        assert sum(p.numel() for p in block.parameters()) == int(mask.sum()) + bias
        assert torch.equal(block.weight, dense.weight)
        again = block.dense()
        assert type(again) is type(dense)
        assert repr(again) == repr(dense)
        assert torch.equal(again.weight, dense.weight)
        assert vars(again).keys() == vars(dense).keys()
        assert same(again, dense, inputs(2, n, *([5] * (layer.weight.dim() - 2))))


@supports
@pytest.mark.parametrize("kernel", [0, 1, 3])
def test_gradients_are_the_dense_ones_on_the_blocks(support: np.ndarray, kernel: int) -> None:
    n = len(support)
    dense, block, mask = pair(nn.Conv2d(n, n, kernel, padding=kernel // 2) if kernel else nn.Linear(n, n), support)
    block.bias = nn.Parameter(dense.bias.detach().clone())
    x = inputs(2, n, 4, 4) if kernel else inputs(5, n)
    for layer in (dense, block):
        layer(x).square().sum().backward()
    for ours, theirs in zip(block.blocks, block.cut(dense.weight.grad), strict=True):
        torch.testing.assert_close(ours.weight.grad, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(block.bias.grad, dense.bias.grad, rtol=1e-4, atol=1e-4)
    block.zero_grad()
    block.weight.square().sum().backward()  # the dense weight is differentiable as well
    assert all(torch.equal(b.weight.grad, 2 * b.weight) for b in block.blocks)
    assert not bool(block.weight[~mask].any())


@supports
def test_copies_and_pickles(support: np.ndarray) -> None:
    n = len(support)
    _, block, _ = pair(nn.Conv2d(n, n, 3), support)
    x = inputs(2, n, 5, 5)
    for twin in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert torch.equal(twin(x), block(x))
        assert twin.blocks[0].weight is not block.blocks[0].weight


@supports
def test_precisions(support: np.ndarray) -> None:
    n = len(support)
    for layer in (nn.Linear(n, n), nn.Conv2d(n, n, 3), nn.Conv2d(n, n, 1)):
        x = inputs(4, n, *[5] * (layer.weight.dim() - 2))
        dense, block, _ = pair(layer, support)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert block(x).dtype == torch.bfloat16
            torch.testing.assert_close(block(x), dense(x), rtol=3e-2, atol=3e-2)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, 3e-2), (torch.float16, 3e-3)):
            ours, theirs, y = copy.deepcopy(block).to(dtype), copy.deepcopy(dense).to(dtype), x.to(dtype)
            with torch.no_grad():
                torch.testing.assert_close(ours(y), theirs(y), rtol=tolerance, atol=tolerance)


@supports
def test_function_transforms(support: np.ndarray) -> None:
    n = len(support)
    dense, block, _ = pair(nn.Linear(n, n), support)
    x = inputs(3, 4, n)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(block)(x), dense(x), rtol=1e-5, atol=1e-5)
    ours, theirs = (torch.func.jacrev(layer)(x[0, 0]) for layer in (block, dense))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_dense_weights_load_and_others_are_refused() -> None:
    dense, _, _ = pair(nn.Linear(9, 9), SORTED, seed=1)
    _, other, _ = pair(nn.Linear(9, 9), SORTED, seed=2)
    other.load_state_dict(dense.state_dict())
    assert torch.equal(other.weight, dense.weight)
    assert torch.equal(other.bias, dense.bias)
    state = copy.deepcopy(other.state_dict())
    for wrong, message in (
        (torch.ones(9, 9), "weight is not zero outside the blocks"),
        (torch.ones(8, 9), "has shape"),
    ):
        with pytest.raises(RuntimeError, match=message):
            other.load_state_dict({**dense.state_dict(), "weight": wrong})
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("shape", [(4, 10), (4, 8), (10,)])
def test_inputs_of_another_width_are_refused(shape: tuple[int, ...]) -> None:
    _, block, _ = pair(nn.Linear(9, 9), SORTED)
    with pytest.raises(DataError, match=r"takes 9 channels on dimension -1, got an input of shape"):
        block(inputs(*shape))


def test_contiguous_columns_are_not_copied() -> None:
    _, block, _ = pair(nn.Linear(9, 9), SORTED)
    x = inputs(4, 9)
    for part in block.blocks:
        taken = part.columns(x, 1)
        assert taken.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_a_group_without_order() -> None:
    """Rows in any order come out in the order of the channels."""
    rows = np.array([2, 0]), np.array([1, 3])
    groups = [Group(np.sort(r), np.arange(4)[k : k + 3]) for k, r in enumerate(rows)]
    dense = nn.Linear(4, 4)
    with torch.no_grad():
        for k, r in enumerate(rows):
            dense.weight[r, 3 * (1 - k)] = 0
    assert same(BLOCK_FORMS[nn.Linear](dense, groups), dense, inputs(3, 4))
