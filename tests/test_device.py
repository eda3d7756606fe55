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
from partialfusion.core.compute import computing_on
from partialfusion.features import moments, union, weights
from partialfusion.surgery.refit import normal_equations
from second_device import FIRST, SECOND, SecondDevice, WrongDeviceError
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


@pytest.mark.parametrize(("name", "call"), [*(("mlp", call) for call in CALLS), ("vgg-bn", "refit")])
def test_heavy_parts_on_another_device(name: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models are on the first device; what is moved for the heavy parts is on the second, and comes back."""
    models, x = sources(name)
    data = batches(x)
    expected = CALLS[call](models, x, data)
    count = 0
    with SecondDevice() as mode:
        mode._mark([t for m in models for t in (*m.parameters(), *m.buffers())] + [x, *data], FIRST)

        def to_second(tensor: Tensor) -> Tensor:
            nonlocal count
            count += 1
            copied = tensor.clone()
            mode._mark([copied], SECOND)
            return copied

        for module in (weights, moments, union, normal_equations):
            monkeypatch.setattr(module, "moved", to_second)
        found = CALLS[call](models, x, data)
    assert torch.equal(found.model(x), expected.model(x))
    assert (count > 0) == (call not in ("average", "ensemble"))


def test_a_chosen_device_changes_nothing_but_the_place() -> None:
    models, x = sources("mlp")
    data = batches(x)
    expected = pf.fuse(models, x, alpha=0.5, data=data, refit=True)
    found = pf.fuse(models, x, alpha=0.5, data=data, refit=True, device="cpu")
    assert torch.equal(found.model(x), expected.model(x))
    assert torch.equal(pf.refit(expected, data, device=torch.device("cpu")).model(x), pf.refit(expected, data).model(x))
    for device in ("nowhere", "meta"):
        with pytest.raises(pf.OptionError, match=f"device='{device}' cannot be used here"):
            pf.fuse(models, x, device=device)


@pytest.mark.parametrize("call", ["fuse", "activations", "refit", "cluster", "interpolate"])
def test_the_heavy_parts_on_a_real_device(call: str, device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("compares another device with the CPU: pytest -m device --device cuda")
    models, x = sources("vgg-bn")
    data = batches(x)
    expected = CALLS[call](models, x, data)
    with computing_on(device):
        found = CALLS[call](models, x, data)
    assert {t.device.type for t in found.model.state_dict().values()} == {"cpu"}
    assert error(found.model(x), expected.model(x)) < 1e-3


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
