"""Models that are never in memory whole: the same bits as in memory, whatever happens on the way."""

from __future__ import annotations

import errno
import json
import re
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Semaphore, get_ident
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

import partialfusion as pf
from partialfusion.cli import app
from partialfusion.core import cluster
from partialfusion.core.blocks import Part
from partialfusion.core.cluster import Here
from partialfusion.errors import CheckpointError, MismatchError, OptionError, ShortfallError
from partialfusion.fusing.align import Aligner, alignment
from partialfusion.io.digest import state_digest
from partialfusion.streaming import fuse as streaming
from partialfusion.streaming import write
from partialfusion.streaming.files import TensorFiles
from streaming.tiny import assert_same_bits, inputs, model, saved
from transformer.needs import need

SHARD = 4000  # bytes, so that there are several


@pytest.fixture(autouse=True)
def _transformers() -> None:
    need("transformers")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small GPTs, of which the second is in several files."""
    need("transformers")
    folder = tmp_path_factory.mktemp("pair")
    first, second = saved(folder, "gpt2", (0,))[0], saved(folder, "gpt2", (1,), shard="4KB")[0]
    assert (first / "model.safetensors").is_file()
    assert len(list(second.glob("*.safetensors"))) > 1
    return [first, second]


def fused(directories: list[Path], out: Path, **options: Any) -> pf.FusedFiles:
    return pf.fuse_files(
        directories,
        out,
        **{"example_inputs": inputs("gpt2"), "method": "permutation", "check": False, "shard_size": SHARD, **options},
    )


# The same bits


@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    [
        ("gpt2", torch.float32, {"alpha": {"*mlp*": 0.5, "*": 0.25}, "mix": 0.3}),
        ("llama", torch.bfloat16, {"alpha": 0.5}),
        ("bert", torch.float16, {"alpha": 1.0}),
        ("vit", torch.float32, {"method": "ot", "align": "greedy", "convention": "mass"}),
    ],
)
def test_the_result_is_that_in_memory_bit_for_bit(
    kind: str, dtype: torch.dtype, options: dict[str, Any], tmp_path: Path
) -> None:
    directories = saved(tmp_path, kind, dtype=dtype, shard="4KB")
    expected = pf.fuse([model(kind, k, dtype) for k in range(2)], _typed(inputs(kind), dtype), check=False, **options)
    found = pf.fuse_files(
        directories, tmp_path / "out", _typed(inputs(kind), dtype), shard_size=SHARD, check=False, **options
    )
    assert_same_bits(pf.from_pretrained(tmp_path / "out"), expected.model)
    assert found.fusion.count == expected.count
    assert [s.after for s in found.summary().spaces] == [s.after for s in expected.summary().spaces]
    assert not (tmp_path / "out.unfinished").exists()


def _typed(batch: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}


def test_mixed_types_are_read_as_transformers_reads_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directories = saved(tmp_path, "llama", dtype=torch.bfloat16)
    for path in directories:
        stored = load_file(path / "model.safetensors")
        mixed = {name: t.float() if "norm" in name else t for name, t in stored.items()}
        save_file(mixed, path / "model.safetensors", {"format": "pt"})
    models = [type(model("llama", 0)).from_pretrained(path) for path in directories]
    assert {p.dtype for m in models for p in m.parameters()} == {torch.bfloat16}
    expected = pf.fuse(models, inputs("llama"), alpha=0.5, check=False)
    pf.fuse_files(directories, tmp_path / "out", inputs("llama"), alpha=0.5, check=False)
    assert "holds parameters in bfloat16 and float32: all are read in torch.bfloat16" in caplog.text
    found = pf.from_pretrained(tmp_path / "out")
    assert_same_bits(found, expected.model)
    found(**inputs("llama"))
    config = directories[0] / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": None}))
    with pytest.raises(OptionError, match="does not say which type the model has: load it with transformers"):
        pf.fuse_files(directories, tmp_path / "out", inputs("llama"), check=False)


def test_three_models_and_the_hashes_of_all(tmp_path: Path) -> None:
    directories = saved(tmp_path, "gpt2", (0, 1, 2))
    models = [model("gpt2", k) for k in range(3)]
    expected = pf.fuse(models, inputs("gpt2"), method="permutation", mix=[0.2, 0.3, 0.5], check=False)
    fused(directories, tmp_path / "out", mix=[0.2, 0.3, 0.5])
    assert_same_bits(pf.from_pretrained(tmp_path / "out"), expected.model)
    header = pf.inspect(tmp_path / "out" / "model.partialfusion.safetensors")
    assert [s.sha256 for s in header.sources] == [state_digest(m) for m in models]


@pytest.mark.parametrize(("kind", "shard"), [("gpt2", SHARD), ("llama", 10**9)])
def test_where_the_config_describes_the_result_transformers_loads_it(kind: str, shard: int, tmp_path: Path) -> None:
    directories = saved(tmp_path, kind)
    (directories[-1] / "tokenizer.json").write_text("{}")
    options: dict[str, Any] = {"method": "permutation", "check": False}
    expected = pf.fuse([model(kind, k) for k in range(2)], inputs(kind), **options)
    found = pf.fuse_files(directories, tmp_path / "out", inputs(kind), shard_size=shard, **options)
    assert found.described
    loaded, info = type(expected.model).from_pretrained(tmp_path / "out", output_loading_info=True)  # type: ignore[attr-defined]
    assert not any(info.values())
    assert_same_bits(loaded, expected.model)
    assert_same_bits(pf.from_pretrained(tmp_path / "out"), expected.model)
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    again = pf.fuse_files([tmp_path / "out", tmp_path / "out"], tmp_path / "self", inputs(kind), method="average")
    assert again.described
    assert_same_bits(pf.from_pretrained(tmp_path / "self"), expected.model)


def test_what_is_not_checked_is_told(pair: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = fused(pair, tmp_path / "out", check=True)
    assert "the check on numbers is left out" in caplog.text
    assert "not checked on numbers: widened model traces the same" in str(found.summary())


@pytest.mark.parametrize(("kind", "why"), [("qwen3", "only averaged"), ("gemma2", "mixed before .*tanh")])
def test_what_may_not_be_the_ensemble_is_told(
    kind: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directories, told = saved(tmp_path, kind), f"could not be compared without numbers .*{why}"
    with pytest.raises(ShortfallError, match=why):
        pf.fuse([model(kind, k) for k in range(2)], inputs(kind), alpha=1.0)
    with pytest.raises(ShortfallError, match=told):
        pf.fuse_files(directories, tmp_path / "out", inputs(kind), alpha=1.0)
    assert not (tmp_path / "out").exists()
    found = pf.fuse_files(directories, tmp_path / "out", inputs(kind), alpha=1.0, allow_shortfall=True)
    assert re.search(told, found.fusion.shortfall)
    assert found.fusion.shortfall in caplog.text


def test_what_is_the_ensemble_raises_nothing(tmp_path: Path) -> None:
    found = pf.fuse_files(saved(tmp_path, "llama"), tmp_path / "out", inputs("llama"), alpha=1.0)
    assert not found.fusion.shortfall


def test_parameters_may_be_narrowed(pair: list[Path], tmp_path: Path) -> None:
    fused(pair, tmp_path / "whole", method="average")
    fused(pair, tmp_path / "half", method="average", dtype=torch.float16)
    whole, half = pf.from_pretrained(tmp_path / "whole"), pf.from_pretrained(tmp_path / "half")
    assert_same_bits(half, whole.half())


def test_no_more_than_one_tensor_of_each_model_is_held_at_a_time(
    pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live: dict[int, int] = {}
    most = [0]
    usual = TensorFiles.read

    def read(self: TensorFiles, name: str, part: Part | None = None) -> Tensor:
        tensor = usual(self, name, part).clone()
        live[id(tensor)] = tensor.numel()
        weakref.finalize(tensor, live.pop, id(tensor))
        most[0] = max(most[0], sum(live.values()))
        return tensor

    monkeypatch.setattr(TensorFiles, "read", read)
    fused(pair, tmp_path / "out")
    sizes = sorted((p.numel() for p in model("gpt2", 0).parameters()), reverse=True)
    assert sizes[0] <= most[0] <= 2 * sizes[0]


# A call that was stopped


class StoppedError(Exception):
    """Stands for a kill."""


def stop_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, done = write.write_shard, [0]

    def once(*args: Any) -> str:
        if done[0] == count:
            raise StoppedError
        done[0] += 1
        return usual(*args)

    monkeypatch.setattr(streaming, "write_shard", once)


def test_a_stopped_call_goes_on_with_its_plan_and_its_shards(
    pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out, unfinished = tmp_path / "out", tmp_path / "out.unfinished"
    fused(pair, tmp_path / "expected")
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(StoppedError):
            fused(pair, out)
    assert not out.exists()
    shards = sorted(unfinished.glob("*-of-*.safetensors"))
    assert len(shards) == 3
    damaged = bytearray(shards[1].read_bytes())
    damaged[-1] ^= 1
    shards[1].write_bytes(damaged)
    before = {p.name: p.stat().st_mtime_ns for p in shards}

    def nothing(*_: object) -> None:
        raise AssertionError("matched again")

    with monkeypatch.context() as patch:
        patch.setattr(Aligner, "template", nothing)
        found = fused(pair, out)
    assert found.kept == 2
    assert f"{shards[1].name} is not what was written" in caplog.text
    after = {name: (out / name).stat().st_mtime_ns for name in before}
    assert [after[n] == before[n] for n in sorted(before)] == [True, False, True]
    assert _bytes(out) == _bytes(tmp_path / "expected")


def _bytes(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_other_options_or_models_begin_anew(
    pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(StoppedError):
            fused(pair, tmp_path / "out")
    assert fused(pair, tmp_path / "out", mix=0.25).kept == 0
    assert "begun with other models or options: starting anew" in caplog.text
    fused(pair, tmp_path / "expected", mix=0.25)
    assert _bytes(tmp_path / "out") == _bytes(tmp_path / "expected")


def test_an_earlier_result_is_replaced_and_other_files_stay(pair: list[Path], tmp_path: Path) -> None:
    fused(pair, tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    found = fused(pair, tmp_path / "out", method="average", shard_size=10**9)
    assert found.described
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("model.partialfusion.safetensors", "partialfusion.json", "notes.txt"),
    }


def test_what_is_in_the_way_stays(pair: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out.unfinished").mkdir()
    (tmp_path / "out.unfinished" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"out\.unfinished holds something else"):
        fused(pair, tmp_path / "out")
    assert (tmp_path / "out.unfinished" / "notes.txt").read_text() == "mine"


def test_what_goes_with_a_model_is_copied_anew(pair: list[Path], tmp_path: Path) -> None:
    directories = copied(pair, tmp_path)
    names = {"spm.model", "bpe.codes", "image_processor.json", "normalizer.json"}
    templates = directories[1] / "additional_chat_templates"
    templates.mkdir()
    for text in ("old", "new"):
        for path in (*(directories[1] / name for name in names), templates / "tool.jinja"):
            path.write_text(text)
        fused(directories, tmp_path / "out")
        assert {(tmp_path / "out" / name).read_text() for name in names} == {text}
        assert (tmp_path / "out" / templates.name / "tool.jinja").read_text() == text


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
def test_two_spaces_are_matched_at_a_time_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [model("llama", k, num_hidden_layers=3) for k in range(2)]
    directories = [tmp_path / "0", tmp_path / "1"]
    for one, path in zip(models, directories, strict=True):
        one.save_pretrained(path)
    usual, free, ran = cluster._without_gradients, Semaphore(2), []

    def noted(*given: Any) -> Any:
        ran.append(get_ident())
        assert free.acquire(blocking=False)
        try:
            return usual(*given)
        finally:
            free.release()

    monkeypatch.setattr(cluster, "_without_gradients", noted)
    monkeypatch.setattr(alignment, "WIDE", 1)
    options: dict[str, Any] = {"alpha": 0.3, "check": False}
    pf.fuse_files(directories, tmp_path / "threads", inputs("llama"), **options)
    assert ran
    assert get_ident() not in ran
    monkeypatch.setattr(streaming, "Threads", lambda _: Here())
    pf.fuse_files(directories, tmp_path / "one-by-one", inputs("llama"), **options)
    assert _bytes(tmp_path / "threads") == _bytes(tmp_path / "one-by-one")


def test_only_one_process_writes_a_directory(pair: list[Path], tmp_path: Path) -> None:
    with (
        streaming.unfinished(tmp_path / "out"),
        pytest.raises(CheckpointError, match="is being written by another process"),
    ):
        fused(pair, tmp_path / "out")


# What is wrong is told in a line, and nothing is half-written


def copied(pair: list[Path], tmp_path: Path) -> list[Path]:
    return [Path(shutil.copytree(p, tmp_path / p.name)) for p in pair]


def test_a_missing_and_a_damaged_shard(pair: list[Path], tmp_path: Path) -> None:
    directories = copied(pair, tmp_path)
    shard = sorted(directories[1].glob("*-of-*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-7])
    with pytest.raises(CheckpointError, match=f"{shard.name} is truncated"):
        fused(directories, tmp_path / "out")
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"the shard {shard.name} that .* lists is missing"):
        fused(directories, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_models_that_do_not_fit(pair: list[Path], tmp_path: Path) -> None:
    directories = copied(pair, tmp_path)
    config = directories[1] / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "n_inner": 48}))
    with pytest.raises(
        CheckpointError, match=r"c_fc\.weight has shape \(16, 64\) in the files and \(16, 48\) by its config"
    ):
        fused(directories, tmp_path / "out")
    index = directories[1] / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    lost = next(name for name in places if name.endswith("wpe.weight"))
    kept = {name: file for name, file in places.items() if file != places[lost]}
    index.write_text(json.dumps({"weight_map": kept}))
    with pytest.raises(CheckpointError, match=r"it lacks .*wpe\.weight"):
        fused(directories, tmp_path / "out")
    half = saved(tmp_path / "half", "gpt2", (1,), torch.bfloat16)
    with pytest.raises(OptionError, match=r"is torch.float32 in .* and torch.bfloat16 in .*: convert one"):
        fused([pair[0], *half], tmp_path / "out")
    fused(pair, tmp_path / "out", method="partial-ot", alpha=1.0)
    with pytest.raises(CheckpointError, match=r"its config does not describe.*pf.from_pretrained"):
        fused([pair[0], tmp_path / "out"], tmp_path / "again")


def test_constants_that_differ(tmp_path: Path) -> None:
    """The frequencies of positions are in no file: the config says what they are."""
    other: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    models = [model.__wrapped__("llama", 0, **other), model("llama", 1)]
    directories = [tmp_path / "0", tmp_path / "1"]
    for one, path in zip(models, directories, strict=True):
        one.save_pretrained(path)
    told = r"the buffer inv_freq of model\.rotary_emb .* differs between models\[0\] and the last model"
    with pytest.raises(MismatchError, match=told):
        pf.fuse(models, inputs("llama"), check=False)
    with pytest.raises(MismatchError, match=told):
        pf.fuse_files(directories, tmp_path / "out", inputs("llama"), check=False)
    assert not list(tmp_path.glob("out*"))


def test_another_config_of_any_model_begins_anew(
    pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directories = copied(pair, tmp_path)
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(StoppedError):
            fused(directories, tmp_path / "out")
    config = directories[0] / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "summary_type": "mean"}))
    assert fused(directories, tmp_path / "out").kept == 0
    assert "begun with other models or options: starting anew" in caplog.text


def test_numbers_that_are_not_finite(pair: list[Path], tmp_path: Path) -> None:
    wrong = model("gpt2", 7)
    with torch.no_grad():
        wrong.transformer.wpe.weight[0, 0] = float("nan")
    wrong.save_pretrained(tmp_path / "nan")
    with pytest.raises(OptionError, match=r"wpe\.weight \(16, 16\) holds 1 NaN"):
        fused([pair[0], tmp_path / "nan"], tmp_path / "out")


def test_a_full_disk(pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        usage = shutil.disk_usage(tmp_path)
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
        with pytest.raises(CheckpointError, match=r"has 0\.00 GB free and .* GB are to be written"):
            fused(pair, tmp_path / "out")
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(write, "write_tensors", full)
        with pytest.raises(CheckpointError, match=r"cannot be written: No space left"):
            fused(pair, tmp_path / "other")
    assert not list(tmp_path.glob("*/*-of-*"))
    fused(pair, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_changed_result_is_not_loaded(pair: list[Path], tmp_path: Path) -> None:
    fused(pair, tmp_path / "out")
    shard = sorted((tmp_path / "out").glob("*-of-*.safetensors"))[2]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{shard.name} is damaged"):
        pf.from_pretrained(tmp_path / "out")
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name}: there is no such file"):
        pf.from_pretrained(tmp_path / "out")


def test_options_that_cannot_be_streamed(pair: list[Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="method='cluster' cannot be streamed"):
        fused(pair, tmp_path / "out", method="cluster")
    with pytest.raises(OptionError, match="is an input and would be overwritten"):
        fused(pair, pair[0])
    with pytest.raises(OptionError, match="two or more directories"):
        fused(pair[:1], tmp_path / "out")
    with pytest.raises(OptionError, match="a number of bytes"):
        fused(pair, tmp_path / "out", shard_size=0)


# The command


def test_the_command_streams_directories(pair: list[Path], tmp_path: Path) -> None:
    names = [f"hf:{p}" for p in pair]
    out = tmp_path / "out"
    options = ["--out", str(out), "--method", "permutation", "--shard-size", "4KB", "--no-check"]
    done = CliRunner().invoke(app, ["fuse", *names, *options])
    assert done.exit_code == 0, done.output
    assert f"pf.from_pretrained('{out}')" in done.output
    expected = pf.fuse([model("gpt2", k) for k in range(2)], inputs("gpt2"), method="permutation", check=False)
    assert_same_bits(pf.from_pretrained(out), expected.model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--refit"], "--refit needs the models in memory"),
        (["--data", "x.npy"], "--data needs the models in memory"),
        (["--budget", "1.2"], "--budget needs the models in memory"),
        (["--shard-size", "big"], "is no size: write it as 500MB or 2GB"),
        (["--cluster", "tcp://127.0.0.1:1"], "no scheduler at tcp://127.0.0.1:1"),
    ],
)
def test_what_the_command_refuses(
    options: list[str], message: str, pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partialfusion.core.cluster.TIMEOUT", 0.5)
    names = [f"hf:{p}" for p in pair]
    done = CliRunner().invoke(app, ["fuse", *names, "--out", str(tmp_path / "out"), *options])
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_progress_is_told(pair: list[Path], tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    fused(pair, tmp_path / "out", progress=lambda *step: told.append(step))
    labels = [label.partition(" ")[0] for label, _ in told]
    assert {"reading", "tracing", "matching", "writing"} <= set(labels)
    fractions = [done for _, done in told]
    assert fractions == sorted(fractions)
