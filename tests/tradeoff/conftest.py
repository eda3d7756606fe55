"""Tiny models and frontiers that several tests look at."""

from __future__ import annotations

import os
from collections.abc import Iterator

import browser
import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from zoo import ZOO

BROWSER = "PARTIALFUSION_BROWSER"


@pytest.fixture(scope="session")
def models() -> list[nn.Module]:
    return [ZOO["mlp"].model(seed) for seed in range(3)]


@pytest.fixture(scope="session")
def x() -> Tensor:
    return ZOO["mlp"].inputs()


@pytest.fixture(scope="session")
def labelled() -> list[tuple[Tensor, Tensor]]:
    """Three batches of inputs with labels that no model knows."""
    generator = torch.Generator().manual_seed(7)
    return [(ZOO["mlp"].inputs(seed), torch.randint(5, (4,), generator=generator)) for seed in range(1, 4)]


@pytest.fixture(scope="session")
def two(models: list[nn.Module], x: Tensor, labelled: list[tuple[Tensor, Tensor]]) -> pf.Frontier:
    """Two models, three ways, three mixes, and one way that cannot work."""
    ways = {
        "average": {"method": "average"},
        "partial-ot": {},
        "ends </script><b>": {"method": "zip"},
        "no such space": {"alpha": {"elsewhere": 0.5}},
    }
    return pf.frontier(
        models[:2], x, evaluate=labelled, methods=ways, alphas=(0, 0.4, 1), mixes=(0.25, 0.5, 0.75), progress=False
    )


@pytest.fixture(scope="session")
def three(models: list[nn.Module], x: Tensor) -> pf.Frontier:
    """Three models, scored by a number below zero."""
    mixes = ((0.2, 0.3, 0.5), (0.6, 0.2, 0.2))
    evaluate = lambda model: -float(model(x).square().mean())  # noqa: E731
    return pf.frontier(models, x, evaluate=evaluate, alphas=(0, 0.5, 1), mixes=mixes, metric="quiet", progress=False)


@pytest.fixture(scope="session")
def tab() -> Iterator[browser.Tab]:
    """A tab of headless Chromium. Where a browser is promised, its absence fails."""
    if browser.executable() is None:
        missing = "there is no Chromium: the interactive page is not tested (Debian: apt-get install chromium)"
        if os.environ.get(BROWSER) == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    with browser.browsing() as found:
        yield found
