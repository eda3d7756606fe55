"""Text, language models of bytes, and the peers that do arithmetic on their weights."""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.errors import DataError
from partialfusion_study.arithmetic import added, task_arithmetic, ties
from partialfusion_study.cells import TextArithmetic, TextMerge, TextParents
from partialfusion_study.cells.texts import unlabelled
from partialfusion_study.data import novels, stdlib, text
from partialfusion_study.data.text import load_text, split
from partialfusion_study.experiments import EXPERIMENTS
from partialfusion_study.experiments.settings import gpt_pairs
from partialfusion_study.methods import AVERAGE, MethodConfig
from partialfusion_study.networks import GPT
from partialfusion_study.resuming import Resumable
from partialfusion_study.text_recipes import TextRecipe, TextTraining
from partialfusion_study.text_training import batch, bits_per_byte, build_text, rate, scored, train_text
from partialfusion_study.trained import checkpoint, trained


def as_bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.tolist())


def test_whole_files_are_held_out(tmp_path: Path):
    files = {f"{k:02}.txt": bytes([65 + k]) * (100 + k) for k in range(26)}
    (tmp_path / "prose").mkdir()
    for name, content in files.items():
        (tmp_path / "prose" / name).write_bytes(content)
    found = load_text("prose", tmp_path)
    train, test = (as_bytes(part).split(b"\n") for part in (found.train, found.test))
    assert sorted(train + test) == sorted(files.values())
    assert 20 * len(b"".join(test)) >= sum(map(len, files.values())) > 20 * len(b"".join(test[:-1]))
    assert torch.equal(split(dict(reversed(files.items())), "files").test, found.test)  # by name, not by order


def test_one_file_is_too_few():
    with pytest.raises(DataError, match="at least two"):
        split({"one": b"text"}, "files")


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="prose is not a folder"):
        load_text("prose", tmp_path)


def test_the_standard_library_is_without_tests(tmp_path: Path):
    for name in (
        "json/decoder.py",
        "test/test_json.py",
        "json/tests/x.py",
        "site-packages/p.py",
        "_sysconfigdata_x.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    assert stdlib.files(tmp_path) == {"json/decoder.py": b"json/decoder.py"}
    assert len(stdlib.files()) > 300  # of this interpreter
    with pytest.raises(DataError, match="no source"):
        stdlib.files(tmp_path / "json/tests/nothing")


def r_vector(*strings: bytes) -> bytes:
    """A vector of strings as R serialises it."""
    parts = [b"X\n", struct.pack(">iii", 3, 0x40201, 0x30500), struct.pack(">i", 5), b"UTF-8"]
    parts.append(struct.pack(">ii", 16, len(strings)))
    parts += [struct.pack(">ii", 0x40009, len(string)) + string for string in strings]
    return b"".join(parts)


def r_database(*vectors: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(vector)) + zlib.compress(vector) for vector in vectors)


def test_novels_are_read_from_a_database_of_r():
    database = r_database(r_vector(b"EMMA", b"", b"by Jane Austen"), r_vector(b"Persuasion", b"Sir Walter"))
    assert novels.novels(database) == {"EMMA": b"EMMA\n\nby Jane Austen", "Persuasion": b"Persuasion\nSir Walter"}


@pytest.mark.parametrize(
    ("database", "message"),
    [
        (b"\0\0\0\5hello", "damaged"),
        (r_database(b"Y\n" + r_vector(b"EMMA")[2:]), "version 3"),
        (struct.pack(">I", 3) + zlib.compress(r_vector(b"EMMA")), "length"),
        (r_database(r_vector(b"EMMA").replace(struct.pack(">i", 16), struct.pack(">i", 13))), "vectors of strings"),
    ],
)
def test_damaged_novels_are_refused(database: bytes, message: str):
    with pytest.raises(DataError, match=message):
        novels.novels(database)


def test_without_a_client_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PARTIALFUSION_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PARTIALFUSION_DATA", raising=False)
    with pytest.raises(DataError, match=r"r-cran-janeaustenr: apt-get could not be run.*prose/ with --data FOLDER"):
        load_text("prose")


def test_text_is_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PARTIALFUSION_CACHE", str(tmp_path))
    monkeypatch.delenv("PARTIALFUSION_DATA", raising=False)
    first = load_text("python")
    text._load.cache_clear()
    monkeypatch.setattr(stdlib, "files", dict)  # would fail
    again = load_text("python")
    assert text.checksum(first) == text.checksum(again)


def test_damaged_text_in_the_cache_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("PARTIALFUSION_CACHE", str(tmp_path))
    monkeypatch.delenv("PARTIALFUSION_DATA", raising=False)
    monkeypatch.setattr(stdlib, "files", lambda: {"a": b"import b", "c": b"import d"})
    (tmp_path / "text-python.safetensors").write_bytes(b"damaged")
    assert len(load_text("python").test) == 8
    assert "reading the text again" in caplog.text
    text._load.cache_clear()
    monkeypatch.setattr(stdlib, "files", dict)
    assert len(load_text("python").test) == 8  # the file has been replaced
    text._load.cache_clear()


class Fixed(nn.Module):
    """The same logits after every byte."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(*x.shape, -1)


def test_bits_per_byte():
    likely = torch.full((256,), -math.inf)
    likely[65], likely[66] = math.log(0.75), math.log(0.25)
    passages = torch.tensor([[66, 65, 65, 66], [0, 65, 65, 65]])
    expected = -(5 * math.log2(0.75) + math.log2(0.25)) / 6
    assert bits_per_byte([Fixed(likely)], passages) == pytest.approx(expected, rel=1e-6)
    assert bits_per_byte([Fixed(torch.zeros(256))], passages) == pytest.approx(8.0)
    mixed = torch.zeros(256)
    mixed[65] = 1.0  # the mean of logits 2 and 0
    expected = -(5 * 1.0 - 6 * math.log(255 + math.e)) / 6 / math.log(2)
    found = bits_per_byte([Fixed(2 * mixed), Fixed(torch.zeros(256))], passages, rows=1)
    assert found == pytest.approx(expected, rel=1e-6)


def test_every_scored_byte_is_scored_once():
    whole = torch.arange(101, dtype=torch.uint8)
    found = scored(whole, 10, 1000)
    assert found[:, 1:].flatten().tolist() == list(range(1, 101))
    few = scored(whole, 10, 40)
    assert few.shape == (4, 11)
    assert len(few[:, 1:].unique()) == 40
    assert int(few.max()) > 70  # spread over the text


def test_task_arithmetic_by_hand():
    base = {"w": torch.tensor([1.0, 2.0]), "steps": torch.tensor(3)}
    tuned = [
        {"w": torch.tensor([1.5, 2.0]), "steps": torch.tensor(4)},
        {"w": torch.tensor([0.0, 5.0]), "steps": base["steps"]},
    ]
    vector = task_arithmetic(base, tuned)
    assert list(vector) == ["w"]
    assert vector["w"].tolist() == [-0.5, 3.0]


def test_ties_by_hand():
    base = {"w": torch.zeros(2, 2), "b": torch.ones(1)}
    tuned = [
        {"w": torch.tensor([[4.0, -3.0], [0.1, 2.0]]), "b": torch.tensor([1.2])},
        {"w": torch.tensor([[2.0, 5.0], [0.3, 0.2]]), "b": torch.tensor([-3.0])},
    ]
    # of five entries, three are kept: 4, −3, 2 of the first and 2, 5, −4 of the second
    vector = ties(base, tuned, density=0.6)
    assert vector["w"].tolist() == [[3.0, 5.0], [0.0, 2.0]]
    assert vector["b"].tolist() == [-4.0]


def test_adding_a_task_vector_leaves_the_base_alone():
    base, tuned = (nn.Linear(3, 2, dtype=torch.float64) for _ in range(2))  # single precision rounds small weights away
    before = base.weight.detach().clone()
    vector = task_arithmetic(base.state_dict(), [tuned.state_dict()])
    assert torch.allclose(added(base, vector, 1.0).weight, tuned.weight)
    assert torch.allclose(added(base, vector, 0.5).weight, (base.weight + tuned.weight) / 2)
    assert torch.equal(base.weight, before)


def test_no_byte_is_predicted_from_itself():
    torch.manual_seed(0)
    model, x = GPT(16, depth=2, heads=2, context=12).eval(), torch.randint(256, (1, 12))
    changed = x.clone()
    changed[0, 7] = (x[0, 7] + 1) % 256
    differs = (model(x) - model(changed)).abs().amax(-1)[0] > 0
    assert differs.tolist() == [False] * 7 + [True] * 5


def test_alpha_one_is_the_ensemble():
    torch.manual_seed(0)
    a, b = (GPT(16, depth=1, heads=2, context=12).eval() for _ in range(2))
    x = torch.randint(256, (2, 12))
    result = pf.fuse([a, b], x, alpha=1.0, mix=[0.3, 0.7])
    assert torch.allclose(result.model(x), 0.3 * a(x) + 0.7 * b(x), atol=1e-5)
    assert result.count.effective_ratio == pytest.approx(2.0)


RECIPE = TextRecipe(16, 1, 2, 16, ("python", "prose"), 0, TextTraining(0, 6, 4))


@pytest.mark.usefixtures("small_study")
class TestTrained:
    def test_the_zoo_holds_the_networks_of_the_committed_results(self):
        for cell in EXPERIMENTS["language"].trainings("usual"):
            assert checkpoint(cell.recipe).parent == Path(__file__).parents[2] / "zoo"

    def test_training_continues_where_it_was_stopped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("partialfusion_study.resuming.INTERVAL", 0.0)
        whole = train_text(RECIPE, build_text(RECIPE))
        state = Resumable(tmp_path / "state")
        steps = iter(range(4))
        real = torch.optim.AdamW.step

        def stopped(*args, **kwargs):
            next(steps)
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(torch.optim.AdamW, "step", stopped)
            with pytest.raises(StopIteration):
                train_text(RECIPE, build_text(RECIPE), state)
        stored = state.load()
        assert stored is not None
        assert stored["step"] == 4
        continued = train_text(RECIPE, build_text(RECIPE), state)
        for p, q in zip(whole.parameters(), continued.parameters(), strict=True):
            assert torch.equal(p, q)

    def test_a_damaged_state_is_not_used(self, tmp_path: Path, caplog: pytest.LogCaptureFixture):
        (tmp_path / "state").write_bytes(b"not a state")
        assert Resumable(tmp_path / "state").load() is None
        assert "starts again" in caplog.text

    def test_batches_have_both_domains(self):
        texts = [torch.zeros(100, dtype=torch.uint8), torch.ones(100, dtype=torch.uint8)]
        found = torch.cat([batch(texts, RECIPE, step) for step in range(20)])
        assert found.shape == (80, 17)
        assert 20 < int(found[:, 0].sum()) < 60

    def test_the_rate_warms_up_and_falls_to_zero(self):
        training = TextTraining(0, 100, 8, rate=0.5)
        rates = [rate(training, step) for step in range(100)]
        assert rates[0] == pytest.approx(0.1)
        assert max(rates) == rates[4] == pytest.approx(0.5)
        assert rates[4:] == sorted(rates[4:], reverse=True)
        assert rates[-1] == pytest.approx(0.0, abs=1e-12)

    def test_tuned_networks_start_from_their_base(self):
        pair = gpt_pairs("quick")["tuned from one base"]
        assert pair.base is not None
        base, a, b = (trained(m).state_dict() for m in (pair.base, pair.a, pair.b))
        apart = trained(gpt_pairs("quick")["trained apart"].a).state_dict()
        moved = (a["head.weight"] - base["head.weight"]).norm()
        assert 0 < moved < 0.5 * (apart["head.weight"] - base["head.weight"]).norm()
        assert not torch.equal(a["head.weight"], b["head.weight"])

    def test_cells(self):
        pair = gpt_pairs("quick")["tuned from one base"]
        parents = TextParents(pair, 320).run()
        assert set(parents) == {"a", "b", "base", "ensemble"}
        whole = TextMerge(pair, MethodConfig(images=20), 1.0, 320).run()
        assert whole["python"] == pytest.approx(parents["ensemble"]["python"], abs=1e-4)
        assert whole["ratio"] == pytest.approx(2.0, abs=0.01)
        average = TextMerge(pair, AVERAGE, 0.0, 320).run()
        same = TextArithmetic(pair, "task arithmetic", (0.5,), 160, 320).run()
        for domain in text.DOMAINS:
            assert same[domain] == pytest.approx(average[domain], abs=1e-5)

    def test_the_best_factor_is_taken(self):
        pair = gpt_pairs("quick")["tuned from one base"]
        found = TextArithmetic(pair, "ties", (-20.0, 0.5), 160, 320).run()
        assert found["factor"] == 0.5
        assert found["curve"][0] > found["curve"][1]

    def test_unlabelled_passages_are_of_both_domains(self):
        found = torch.cat(unlabelled(16, 60, seed=0))
        assert found.shape == (60, 16)
        prose = as_bytes(load_text("prose").train)
        assert sum(as_bytes(row) in prose for row in found) == pytest.approx(30, abs=2)
