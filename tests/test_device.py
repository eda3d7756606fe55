"""Results are on the device of the models and the same as on the CPU: `pytest -m device --device cuda` on a GPU.

On a machine without one, the meta device and a marked second device stand in: a tensor that the library creates on the
wrong device fails there too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from second_device import SecondDevice, WrongDeviceError
from zoo import ZOO, error

pytestmark = pytest.mark.device

NAMES = ("mlp", "vgg-bn", "resnet")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.config.getoption("--device"))


def batches(x: Tensor) -> list[Tensor]:
    return [torch.randn(24, *x.shape[1:], generator=torch.Generator().manual_seed(k)) for k in range(2)]


CALLS: dict[str, Callable[[list[nn.Module], Tensor, list[Tensor]], pf.Fusion]] = {
    "fuse": lambda models, x, data: pf.fuse(models, x, alpha=0.5),
    "average": lambda models, x, data: pf.fuse(models, x, method="average"),
    "activations": lambda models, x, data: pf.fuse(models, x, alpha=0.5, data=data, features="activations"),
    "refit": lambda models, x, data: pf.fuse(models, x, alpha=0.5, data=data, refit=True),
    "repair": lambda models, x, data: pf.fuse(models, x, alpha=0.5, data=data, norm="repair"),
    "ensemble": lambda models, x, data: pf.fuse(models, x, alpha=1.0),
    "cluster": lambda models, x, data: pf.fuse(models, x, alpha=0.5, method="cluster", data=data),
    "interpolate": lambda models, x, data: pf.fuse(models, x, alpha=0.5, method="interpolate", data=data),
    "prune": lambda models, x, data: pf.prune(models[0], x, keep=0.5, data=data),
}


def sources(name: str) -> tuple[list[nn.Module], Tensor]:
    return [ZOO[name].model(0), ZOO[name].model(1)], ZOO[name].inputs()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", NAMES)
def test_results_are_where_the_models_are(name: str, call: str, device: torch.device, tmp_path: Path) -> None:
    if device.type == "cpu" and (name, call) != ("mlp", "refit"):
        pytest.skip("compares another device with the CPU: pytest -m device --device cuda")
    models, x = sources(name)
    data = batches(x)
    expected = CALLS[call](models, x, data)
    moved = [copy.deepcopy(m).to(device) for m in models]
    found = CALLS[call](moved, x.to(device), [batch.to(device) for batch in data])
    assert {t.device.type for t in found.model.state_dict().values()} == {device.type}
    assert error(found.model(x.to(device)).cpu(), expected.model(x)) < 1e-3
    pf.save(found, tmp_path / "a.safetensors")
    back = pf.load(tmp_path / "a.safetensors", into=moved[-1])
    assert torch.equal(back(x.to(device)), found.model(x.to(device)))
    blocks = pf.to_blocks(found, x.to(device))
    assert error(blocks(x.to(device)).cpu(), expected.model(x)) < 1e-3


@pytest.mark.parametrize(("name", "call"), [*(("mlp", call) for call in CALLS), ("vgg-bn", "refit")])
def test_a_marked_second_device(name: str, call: str) -> None:
    models, x = sources(name)
    data = batches(x)
    with SecondDevice(*models, x, *data):
        result = CALLS[call](models, x, data)
        pf.to_blocks(result, x)


def test_a_tensor_on_the_wrong_device_fails() -> None:
    """So the test above can fail."""
    model, x = ZOO["mlp"].model(0), ZOO["mlp"].inputs()

    def misplaced(layer: Any, given: Any, output: Tensor) -> Tensor:
        return output + torch.zeros(output.shape[-1])

    with SecondDevice(model, x):
        model(x)
        model[0].register_forward_hook(misplaced)
        with pytest.raises(WrongDeviceError, match="add"):
            model(x)
