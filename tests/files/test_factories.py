"""Models by name: factories in modules, in the current folder and in catalogues, with arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from partialfusion.cli import app
from partialfusion.errors import OptionError
from partialfusion.io.checkpoints import load_model, save_state
from partialfusion.io.factories import Spec, as_python, build, load_factory

FACTORIES = """
import sys
from torch import nn

number = 3
def good(): return nn.Linear(2, 2)
def raises(): raise RuntimeError("no luck today\\nsecond line")
def leaves(): sys.exit(4)
def wants(width): return nn.Linear(width, 2)
def text(): return "model"
def lazily():
    import factories_helper
    return factories_helper.make()
class Net(nn.Linear):
    def __init__(self): super().__init__(3, 3)
    @staticmethod
    def other(): return nn.Linear(4, 4)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "factories_for_tests.py").write_text(FACTORIES)
    (tmp_path / "factories_helper.py").write_text("from torch import nn\ndef make(): return nn.Linear(7, 7)\n")
    (tmp_path / "factories_broken.py").write_text("import package_that_is_not_there\n")
    (tmp_path / "factories_syntax.py").write_text("def f(:\n")
    (tmp_path / "factories_exit.py").write_text("import sys\nsys.exit(1)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "width"), [("good", 2), ("Net", 3), ("Net.other", 4), ("lazily", 7)])
def test_factories_in_the_current_folder(folder: Path, name: str, width: int) -> None:
    path = list(sys.path)
    model = build(f"factories_for_tests:{name}")
    assert isinstance(model, nn.Linear)
    assert model.in_features == width
    assert sys.path == path


def test_factory_draws_from_its_own_seed(folder: Path) -> None:
    state = torch.random.get_rng_state()
    a, b, c = (build("factories_for_tests:good", seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert same(a, b)
    assert not same(a, c)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("factories_for_tests", "package.module:factory"),
        (":good", "package.module:factory"),
        ("factories_for_tests:", "package.module:factory"),
        ("no_such_module:good", "no module 'no_such_module'.*install"),
        ("torch.no_such_module:good", "no module 'torch.no_such_module'"),
        ("factories_broken:f", "importing factories_broken failed.*package_that_is_not_there"),
        ("factories_syntax:f", "importing factories_syntax failed: SyntaxError"),
        ("factories_exit:f", "importing factories_exit failed: SystemExit"),
        ("factories_for_tests:god", "has no 'god'; did you mean good"),
        ("factories_for_tests:number.x", "has no 'number.x'"),
        ("factories_for_tests:number", "is of type int"),
        ("factories_for_tests:raises", "RuntimeError: no luck today. It was called without arguments"),
        ("factories_for_tests:leaves", "failed: SystemExit"),
        ("factories_for_tests:wants", "width"),
        ("factories_for_tests:text", "returned a str"),
        (".relative:good", "factory '.relative:good'"),
        ("factories_for_tests:wants,8", "are not arguments"),
        ("factories_for_tests:wants,width=open('x')", "are not arguments"),
        ("factories_for_tests:wants,width=", "are not arguments"),
        ("factories_for_tests:wants,size=8", "It was called with {'size': 8}"),
    ],
)
def test_bad_factories(folder: Path, spec: str, match: str) -> None:
    with pytest.raises(OptionError, match=match) as caught:
        build(spec)
    assert "\n" not in str(caught.value)
    assert spec in str(caught.value)


def test_factory_without_calling_it(folder: Path) -> None:
    assert load_factory("factories_for_tests:raises").__name__ == "raises"


def test_model_from_factory_and_file(folder: Path) -> None:
    save_state(source := nn.Linear(2, 2), "a.safetensors")
    assert same(load_model("factories_for_tests:good", "a.safetensors"), source)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_arguments() -> None:
    assert Spec.of("a:b,width=8,act=relu,sizes=(1, 2),name='x,y'").arguments == {
        "width": 8,
        "act": "relu",
        "sizes": (1, 2),
        "name": "x,y",
    }


def test_factory_with_arguments(folder: Path) -> None:
    model = build("factories_for_tests:wants,width=9")
    assert isinstance(model, nn.Linear)
    assert model.in_features == 9


def test_torchvision() -> None:
    pytest.importorskip("catalogue.models")  # lets torchvision be imported beside a CPU build of torch
    model = build("torchvision:squeezenet1_1,num_classes=7")
    assert sum(p.numel() for p in model.parameters()) > 7 * 512
    backbone = load_factory("torchvision:lraspp_mobilenet_v3_large")
    assert backbone.keywords == {"weights_backbone": None}  # type: ignore[attr-defined]  # nothing is downloaded
    with pytest.raises(OptionError, match="torchvision has no model 'resnet19'; did you mean resnet1"):
        build("torchvision:resnet19")


def test_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package, which is not needed otherwise."""
    made = SimpleNamespace(
        list_models=lambda: ["resnet18", "resnet26"], create_model=lambda name, width=3: nn.Linear(len(name), width)
    )
    monkeypatch.setitem(sys.modules, "timm", made)
    for spec, width in (("timm:resnet18", 3), ("timm:resnet18.a1_in1k,width=5", 5)):
        model = build(spec)
        assert isinstance(model, nn.Linear)
        assert model.out_features == width
    with pytest.raises(OptionError, match="timm has no model 'resnet'; did you mean"):
        build("timm:resnet")


@pytest.mark.parametrize("spec", ["timm:test_resnet,num_classes=5", "torchvision:squeezenet1_1,num_classes=5"])
def test_catalogues_on_the_command_line(folder: Path, spec: str) -> None:
    """Models of the packages themselves, where they are there, fused from files like any other."""
    pytest.importorskip("catalogue.models")
    pytest.importorskip(spec.partition(":")[0])
    for seed in (0, 1):
        save_state(build(spec, seed=seed), f"{seed}.safetensors")
    words = ["fuse", spec, "0.safetensors", "1.safetensors", "--input", "1,3,64,64", "--method", "average"]
    result = CliRunner().invoke(app, [*words, "--no-check", "--out", "fused.safetensors"])
    assert result.exit_code == 0, result.stderr
    a, b, fused = (dict(load_model(spec, f"{name}.safetensors").named_parameters()) for name in ("0", "1", "fused"))
    for name, parameter in fused.items():
        torch.testing.assert_close(parameter, (a[name] + b[name]) / 2)


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_catalogue_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.models", None)
    with pytest.raises(OptionError, match=f"needs {package} .*pip install {package}"):
        build(f"{package}:resnet18")


def test_catalogue_that_does_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(OptionError, match="is installed but cannot be imported .*nms.*build that fits your PyTorch"):
        build("timm:resnet18")


@pytest.mark.parametrize(
    ("spec", "imported", "built"),
    [
        ("nets:mlp", "from nets import mlp", "mlp()"),
        ("nets.a:Net.small,width=8,act=relu", "from nets.a import Net", "Net.small(width=8, act='relu')"),
        ("timm:resnet18,num_classes=2", "import timm", "timm.create_model('resnet18', num_classes=2)"),
        ("torchvision:vgg11", "import torchvision", "torchvision.models.get_model('vgg11')"),
    ],
)
def test_as_python(spec: str, imported: str, built: str) -> None:
    assert as_python(spec) == (imported, built)
