"""Hugging Face: configs follow results or refuse, directories of our own, generation, and hf:DIR in commands."""

from __future__ import annotations

import copy
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import partialfusion as pf
from files.test_storage import same_bits
from partialfusion.cli import app
from partialfusion.errors import CheckpointError, OptionError
from partialfusion.io import pretrained
from partialfusion.io.checkpoints import load_model
from partialfusion.io.factories import as_python, build
from transformer.needs import allow_torchvision, need
from transformer.zoo import ZOO

REFUSED = r"call pf\.save_pretrained\(result, dir\)"


@pytest.fixture(autouse=True)
def _transformers() -> None:
    need("transformers")
    allow_torchvision()


@cache
def model(name: str, seed: int = 1) -> Any:
    return ZOO[name].build(seed)


@cache
def blueprint(name: str) -> pf.Blueprint:
    return pf.trace(model(name), ZOO[name].inputs())


@cache
def fused(name: str, alpha: float) -> pf.Fusion:
    return pf.fuse([model(name, 0), model(name)], ZOO[name].inputs(), alpha=alpha, blueprint=blueprint(name))


@cache
def pruned(name: str) -> pf.Fusion:
    return pf.prune(model(name), ZOO[name].inputs(), keep=0.5, method="magnitude", blueprint=blueprint(name))


def run(found: nn.Module, name: str) -> Tensor:
    with torch.no_grad():
        return ZOO[name].run(found.eval(), ZOO[name].inputs())


def own_round_trip(result: pf.Fusion, name: str, folder: Path) -> Any:
    """Saved and loaded by transformers alone."""
    found: Any = result.model
    found.save_pretrained(folder)
    loaded, info = type(found).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    assert torch.equal(run(loaded, name), run(found, name))
    return loaded


# Transformers' own way


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("vit", {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}),
        ("gpt2", {"n_embd": 32, "n_head": 2}),
    ],
)
def test_configs_follow(name: str, changed: dict[str, int], tmp_path: Path) -> None:
    """GPT-2 has as many positions as channels: the one follows and the other stays."""
    before = model(name).config.to_dict()
    result = pruned(name)
    config: Any = result.model.config
    assert {k: v for k, v in config.to_dict().items() if before.get(k) != v} == changed
    assert model(name).config.to_dict() == before
    assert all(m.config.to_dict() == config.to_dict() for m in result.model.modules() if hasattr(m, "config"))
    own_round_trip(result, name, tmp_path)
    pf.save_pretrained(result, tmp_path / "ours")
    again: Any = pf.from_pretrained(tmp_path / "ours")
    assert same_bits(again, result.model)
    again.save_pretrained(tmp_path / "again")  # its config says all
    restored = pf.restore(tmp_path / "ours" / pretrained.WEIGHTS, result.sources, ZOO[name].inputs())
    own_round_trip(restored, name, tmp_path / "restored")
    blocks: Any = pf.to_blocks(result)
    with pytest.raises(CheckpointError, match="held as blocks"):
        blocks.save_pretrained(tmp_path / "blocks")
    pf.from_blocks(blocks).save_pretrained(tmp_path / "dense")  # type: ignore[operator]


def test_the_width_of_one_model(tmp_path: Path) -> None:
    for name in ("llama", "t5"):
        own_round_trip(fused(name, 0.0), name, tmp_path / name)


def test_uneven_layers_are_refused(tmp_path: Path) -> None:
    name = "vit"
    first, _ = (s.name for s in blueprint(name) if s.width == 128)
    result = pf.prune(model(name), ZOO[name].inputs(), keep={first: 0.5}, method="magnitude", blueprint=blueprint(name))
    with pytest.raises(CheckpointError, match=f"no config gives its widths.*{REFUSED}"):
        result.model.save_pretrained(tmp_path / "a")  # type: ignore[operator]
    assert not (tmp_path / "a").exists()
    pf.save_pretrained(result, tmp_path / "b")
    assert same_bits(pf.from_pretrained(tmp_path / "b"), result.model)


def test_the_same_shapes_are_not_enough(tmp_path: Path) -> None:
    """T5 with tied embeddings divides by the root of its width, which is the source's in a pruned model."""
    with pytest.raises(CheckpointError, match=REFUSED):
        pruned("t5").model.save_pretrained(tmp_path / "a")  # type: ignore[operator]


def test_view_norms_are_refused_also_in_copies(tmp_path: Path) -> None:
    result = fused("llama", 0.5)
    trained = copy.deepcopy(result.model)
    ZOO["llama"].run(trained, ZOO["llama"].inputs()).square().mean().backward()
    torch.optim.SGD(trained.parameters(), 1e-3).step()
    pf.save(result, path := tmp_path / "a.safetensors")
    loaded = pf.load(path, into=model("llama", 0))
    torch.save(trained, tmp_path / "whole.pt")
    pickled = torch.load(tmp_path / "whole.pt", weights_only=False)
    for found in (result.model, trained, loaded, pickled):
        with pytest.raises(CheckpointError, match=f"several views.*{REFUSED}"):
            found.save_pretrained(tmp_path / "b")
    assert not (tmp_path / "b").exists()
    model("llama").save_pretrained(tmp_path / "source")


# Directories of our own


def check_round_trip(result: pf.Fusion, name: str, folder: Path) -> Any:
    pf.save_pretrained(result, folder)
    loaded = pf.from_pretrained(folder)
    assert type(loaded) is type(result.model)
    assert not loaded.training
    assert same_bits(loaded, result.model)
    assert torch.equal(run(loaded, name), run(result.model, name))
    return loaded


@pytest.mark.parametrize("name", ["llama", "vit", "t5"])
def test_directories(name: str, tmp_path: Path) -> None:
    loaded = check_round_trip(fused(name, 0.5), name, tmp_path / "a")
    with pytest.raises(CheckpointError, match=REFUSED):
        loaded.save_pretrained(tmp_path / "b")
    assert json.loads((tmp_path / "a" / "config.json").read_text())["architectures"] == [type(loaded).__name__]
    assert os.listdir(tmp_path) == ["a"]


def test_precisions(tmp_path: Path) -> None:
    half = copy.copy(fused("llama", 0.5))
    object.__setattr__(half, "model", copy.deepcopy(half.model).to(torch.bfloat16))
    check_round_trip(half, "llama", tmp_path / "a")
    pf.save_pretrained(fused("llama", 0.5), tmp_path / "b", dtype=torch.float16)
    assert {p.dtype for p in pf.from_pretrained(tmp_path / "b").parameters()} == {torch.float16}


def test_generation_config(tmp_path: Path) -> None:
    result = copy.copy(fused("llama", 0.5))
    object.__setattr__(result, "model", copy.deepcopy(result.model))
    result.model.generation_config.max_new_tokens = 5  # type: ignore[union-attr]
    loaded = check_round_trip(result, "llama", tmp_path / "a")
    assert loaded.generation_config.max_new_tokens == 5


def test_transformers_refuses_our_directories(tmp_path: Path) -> None:
    import transformers

    pf.save_pretrained(fused("llama", 0.5), tmp_path / "a")
    for kind in (transformers.LlamaForCausalLM, transformers.AutoModel, transformers.AutoModelForCausalLM):
        with pytest.raises(OSError, match=r"load this directory with partialfusion\.from_pretrained"):
            kind.from_pretrained(tmp_path / "a")
    with pytest.raises(OSError, match="partialfusion"):
        transformers.LlamaForCausalLM.from_pretrained(tmp_path / "a", ignore_mismatched_sizes=True)


def test_what_is_in_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "runs").mkdir()
    check_round_trip(fused("llama", 0.5), "llama", folder)
    check_round_trip(fused("llama", 1.0), "llama", folder)
    assert {"tokenizer.json", "runs", "partialfusion.json"} < {p.name for p in folder.iterdir()}
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    model("llama").save_pretrained(tmp_path / "source")
    with pytest.raises(CheckpointError, match="holds the weights of another model .model.safetensors.; name another"):
        pf.save_pretrained(fused("llama", 0.5), tmp_path / "source")
    with pytest.raises(CheckpointError, match="it is a file; name a directory"):
        pf.save_pretrained(fused("llama", 0.5), folder / "tokenizer.json")
    with pytest.raises(CheckpointError, match="there is no folder"):
        pf.save_pretrained(fused("llama", 0.5), tmp_path / "none" / "a")


@pytest.mark.parametrize("exists", [False, True])
def test_completely_or_not_at_all(exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a"
    if exists:
        pf.save_pretrained(fused("llama", 1.0), folder)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pretrained, "save", full)
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
        pf.save_pretrained(fused("llama", 0.5), folder)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert folder.exists() == exists
    assert len(os.listdir(tmp_path)) == exists


def test_directories_that_are_not_ours(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such directory.*nothing is downloaded"):
        pf.from_pretrained(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"was not written by pf\.save_pretrained: it has no partialfusion.json"):
        pf.from_pretrained(tmp_path)
    pf.save_pretrained(fused("llama", 0.5), folder := tmp_path / "a")
    record = folder / "partialfusion.json"
    text = record.read_text()
    for content, why in {
        text.replace('"format": 1', '"format": 7'): "has format 7, written by partialfusion",
        text.replace("LlamaForCausalLM", "Nonsense"): r"holds a Nonsense, which transformers .* into=model",
        text.replace("LlamaForCausalLM", "pipeline"): "which transformers .* does not have",
        "[]": "holds a list, not an object",
        "{": "cannot be read",
    }.items():
        record.write_text(content)
        with pytest.raises(CheckpointError, match=why):
            pf.from_pretrained(folder)
    record.write_text(text)
    (folder / pretrained.WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match="there is no such file"):
        pf.from_pretrained(folder)


def test_classes_of_the_users_own(tmp_path: Path) -> None:
    import transformers

    class Mine(transformers.ViTForImageClassification):  # type: ignore[misc]
        pass

    x = ZOO["vit"].inputs()
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(Mine(model("vit").config).eval())
    result = pf.fuse(models, x, alpha=0.5)
    pf.save_pretrained(result, tmp_path / "a")
    with pytest.raises(CheckpointError, match="holds a Mine, which transformers .* does not have"):
        pf.from_pretrained(tmp_path / "a")
    loaded = pf.from_pretrained(tmp_path / "a", into=models[0])
    assert same_bits(loaded, result.model)


def test_other_models(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    result = pf.fuse([net, copy.deepcopy(net)], torch.ones(1, 3))
    with pytest.raises(OptionError, match=r"Sequential has no config.*use pf\.save"):
        pf.save_pretrained(result, tmp_path / "a")


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pf.save_pretrained(fused("llama", 0.5), tmp_path / "a")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(OptionError, match=r"pip install partialfusion\[hf\]"):
        pf.from_pretrained(tmp_path / "a")


# Generation


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_generate(name: str, alpha: float) -> None:
    words = ZOO[name].inputs()["input_ids"][:, :8]  # type: ignore[index]
    found: Any = fused(name, alpha).model
    how = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    how["attention_mask"] = torch.ones_like(words)
    cached, plain = (found.generate(words, use_cache=cache, **how) for cache in (True, False))
    assert torch.equal(cached, plain)
    assert cached.shape[1] == 8 + (1 if name == "t5" else 8)
    if alpha == 1.0:
        expected = (run(model(name, 0), name) + run(model(name), name)) / 2
        torch.testing.assert_close(run(found, name), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


# Commands


def test_checkpoint_directories_in_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model("llama", 0).save_pretrained("A")
    model("llama").save_pretrained("B", max_shard_size="100KB")
    assert len(list(Path("B").glob("*.safetensors"))) > 1
    for seed, folder in enumerate("AB"):
        assert same_bits(load_model("hf:A", folder), model("llama", seed))
    command = ["fuse", "hf:A", "A", "B", "--input", "2,6:int64", "--alpha", "0.5", "--out", "fused.safetensors"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "LlamaForCausalLM(AutoConfig.from_pretrained('A'))" in done.stdout
    loaded = load_model("hf:A", "fused.safetensors")
    expected = fused("llama", 0.5).model
    assert {n: t.shape for n, t in loaded.state_dict().items()} == {
        n: t.shape for n, t in expected.state_dict().items()
    }
    pf.save_pretrained(fused("llama", 0.5), "C")
    assert same_bits(load_model("hf:A", "C"), expected)
    assert build("hf:A,vocab_size=50").config.vocab_size == 50  # type: ignore[union-attr]
    assert as_python("hf:A,vocab_size=50")[1] == "LlamaForCausalLM(AutoConfig.from_pretrained('A', vocab_size=50))"


def test_directories_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model("llama", 0).save_pretrained("A")
    for text, why in {
        "hf:none": "none: there is no such directory",
        "hf:.": "has no config.json",
        "hf:": "name a function or class",
        "hf:A,hidden_size=-1": "cannot be built from its config",
    }.items():
        with pytest.raises((CheckpointError, OptionError), match=why):
            build(text)
    with pytest.raises(CheckpointError, match="cannot be loaded as|does not fit"):
        load_model("hf:A,vocab_size=50", "A")
    Path("bin").mkdir()
    torch.save(model("llama").state_dict(), "bin/pytorch_model.bin")
    with pytest.raises(CheckpointError, match="only as pickles .pytorch_model.bin.*refused"):
        load_model("hf:A", "bin")
    Path("empty").mkdir()
    with pytest.raises(CheckpointError, match="has no weights"):
        load_model("hf:A", "empty")
    model("gpt2").save_pretrained("G")
    with pytest.raises(CheckpointError, match="G does not fit LlamaForCausalLM|G cannot be loaded"):
        load_model("hf:A", "G")
    with pytest.raises(CheckpointError, match="is a folder"):
        load_model("torch.nn:Linear,in_features=2,out_features=2", "A")
