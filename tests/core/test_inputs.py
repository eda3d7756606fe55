"""Inputs and results: how a model is called, and which tensors of what it returns count."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils.data import DataLoader

import partialfusion as pf
from partialfusion.core.batches import Batches
from partialfusion.core.inputs import Inputs, Signature, run
from partialfusion.errors import DataError, OptionError, TraceError
from zoo import identical, snapshot

IDS = torch.arange(24).reshape(2, 12) % 7


class Record(OrderedDict):
    """An output like those of Hugging Face: a mapping with a class of its own, which PyTorch takes apart."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


_pytree.register_pytree_node(
    Record, lambda r: (list(r.values()), list(r)), lambda values, keys: Record(zip(keys, values, strict=True))
)


class Unknown(OrderedDict):
    """The same, which PyTorch does not take apart."""


@dataclass
class Fields:
    logits: Tensor
    hidden: Tensor
    cache: Any = None


class Tagger(nn.Module):
    """Takes keywords and returns logits with much that is no result; asks its configuration whether to cache."""

    def __init__(self, form: type = Record, seed: int = 0, *, name: str = "logits") -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.config = SimpleNamespace(use_cache=True)
        self.embed, self.hidden, self.head = nn.Embedding(7, 8), nn.Linear(8, 16), nn.Linear(16, 5)
        self.form, self.name = form, name

    def forward(self, input_ids: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> Any:
        states = torch.relu(self.hidden(self.embed(input_ids)))
        states = states if mask is None else states * mask[..., None]
        logits = self.head(states)
        if self.form is Tensor:
            return logits
        if self.form is Fields:
            return Fields(logits, states)
        found = {} if labels is None else {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}
        found |= {"hidden_states": (states,), self.name: logits}
        return self.form({**found, "cache": states * 2} if self.config.use_cache else found)


def batch(seed: int = 0, n: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(7, (n, 12), generator=generator)
    return {"input_ids": ids, "mask": torch.ones(n, 12), "labels": ids % 5}


def example() -> dict[str, Tensor]:
    return {"mask": torch.ones(2, 12), "input_ids": IDS}


# ---- inputs ----


def test_a_tensor_a_tuple_a_list_and_mappings_are_inputs() -> None:
    x = torch.ones(2)
    assert [len(Inputs.of(value).args) for value in (x, (x, x), [x])] == [1, 2, 1]
    for mapping in ({"a": x}, OrderedDict(a=x), UserDict(a=x)):
        found = Inputs.of(mapping)
        assert not found.args
        assert list(found.kwargs) == ["a"]
    assert Inputs.of(Inputs.of(x), "logits").output == "logits"
    assert Inputs.of({"a": x, "b": 3}).shapes == "a (2,), b int"
    assert Inputs.of((x, None)).shapes == "[(2,), 'NoneType']"
    doubled = Inputs.of({"a": (x, 1)}).map(lambda v: v * 2)
    assert torch.equal(doubled.kwargs["a"][0], 2 * x)
    assert doubled.kwargs["a"][1] == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, "empty mapping"), ({1: IDS}, "the key 1"), ({"input_ids": [[1, 2]]}, 'return_tensors="pt"')],
)
def test_mappings_that_are_no_inputs(given: Any, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        Inputs.of(given)
    for output in (True, 1.5, ["logits"]):
        with pytest.raises(OptionError, match="output="):
            Inputs.of(IDS, output)  # type: ignore[arg-type]


def test_a_call_leaves_inputs_and_configuration_as_they_were() -> None:
    model, inputs = Tagger(), Inputs.of(example())
    assert set(inputs.call(model)) == {"hidden_states", "logits"}
    assert model.config.use_cache is True
    with pytest.raises(TypeError):
        Inputs.of({"unheard_of": IDS}).call(model)
    assert model.config.use_cache is True
    x = torch.ones(3)
    Inputs.of({"input": x}).call(nn.ReLU(inplace=True)).zero_()
    assert x.tolist() == [1, 1, 1]


# ---- results ----

A, B, C = torch.zeros(1), torch.ones(1), torch.full((1,), 2.0)
Pair = namedtuple("Pair", ["first", "logits"])


@pytest.mark.parametrize(
    ("returned", "output", "expected"),
    [
        (A, None, [A]),
        ((A, [B, "text"], None), None, [A, B]),
        ({"x": A, "y": B}, None, [A, B]),
        ({"x": A, "y": B}, "y", [B]),
        ({"x": A, "y": B}, -1, [B]),
        ((A, B), 0, [A]),
        ((A, (B, C)), 1, [B, C]),
        ({"loss": A, "logits": B}, None, [B]),
        (Pair(A, B), None, [B]),
        (Pair(A, B), "first", [A]),
        (Fields(B, A), None, [B]),
        (Fields(B, A), "hidden", [A]),
        (Record(logits_per_image=A, logits_per_text=B, embeds=C), None, [A, B]),
        (Record(start_logits=A, end_logits=B, states=(C,)), None, [A, B]),
        (Record(loss=A, last_hidden_state=B, pooled=C), None, [B]),
        (Unknown(loss=A, logits=None, states=(B,), other=C), None, [B]),
        (OrderedDict(out=A, aux=B), None, [A, B]),
    ],
)
def test_results_are_found(returned: Any, output: Any, expected: list[Tensor]) -> None:
    found = Inputs.of(IDS, output).results(returned)
    assert [id(t) for t in found] == [id(t) for t in expected]


@pytest.mark.parametrize(
    ("returned", "output", "told"),
    [
        (A, "logits", "returns a tensor, which has no entries; leave it out"),
        ({"x": A}, "logits", "its entries are x"),
        ((A, B), 2, "its entries are 0, 1"),
        (Record(loss=A), None, "holds no tensor"),
        ({"x": None}, "x", "output 'x' holds no tensor"),
        (None, None, "--output"),
    ],
)
def test_results_that_are_not_there(returned: Any, output: Any, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        Inputs.of(IDS, output).results(returned)


# ---- tracing and fusing ----

FORMS = [Record, Unknown, dict, Fields]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_result_fixes_nothing(form: type) -> None:
    model = Tagger(form)
    before = snapshot(model)
    blueprint, plain = pf.trace(model, example()), pf.trace(Tagger(Tensor), (IDS,))
    assert {s.name: s.kind for s in blueprint} == {s.name: s.kind for s in plain}
    assert blueprint["hidden"].kind == "elastic"
    assert set(blueprint.shapes) == set(dict(model.named_parameters()))
    assert model.config.use_cache is True
    assert identical(before, model)
    if form is not Fields:
        assert pf.trace(model, example(), output="hidden_states")["hidden"].kind == "rigid"


def test_all_tensors_of_plain_outputs_are_results() -> None:
    assert pf.trace(Tagger(dict, name="tags"), example())["hidden"].kind == "rigid"
    assert pf.trace(Tagger(dict, name="tags"), example(), output="tags")["hidden"].kind == "elastic"


@pytest.mark.parametrize("form", FORMS)
def test_keyword_models_are_fused_to_the_ensemble(form: type) -> None:
    models, inputs = [Tagger(form, seed) for seed in (0, 1)], Inputs.of(example())
    data = DataLoader([{k: v[0] for k, v in batch(seed).items()} for seed in range(8)], batch_size=4)
    result = pf.fuse(models, UserDict(example()), alpha=1.0, mix=[0.3, 0.7])
    expected = 0.3 * run(models[0], inputs)[0] + 0.7 * run(models[1], inputs)[0]
    assert torch.allclose(run(result.model, inputs)[0], expected, atol=1e-5)
    assert result.inputs == Signature(0, ("mask", "input_ids"))
    smaller = pf.fuse(models, example(), alpha=0.2, data=data, refit=True)
    again = pf.refit(smaller, [(b, b["labels"]) for b in data])
    assert all(bool(torch.isfinite(t).all()) for t in run(again.model, inputs))
    assert pf.prune(models[0], example(), keep=0.5, output="logits", data=data).model.hidden.out_features == 8
    assert run(pf.to_blocks(smaller, example()), inputs)[0].shape == (2, 12, 5)
    assert all(m.config.use_cache is True for m in (*models, result.model, smaller.model))


def test_labels_may_be_inputs() -> None:
    inputs = {**example(), "labels": IDS % 5}
    models = [Tagger(seed=seed) for seed in (0, 1)]
    result = pf.fuse(models, inputs, alpha=1.0, data=[batch()], evaluate=[batch()], mix="auto")
    assert result.blueprint["hidden"].kind == "elastic"


def test_a_wrong_output_is_told_by_all() -> None:
    models = [Tagger(seed=seed) for seed in (0, 1)]
    for call in (
        lambda: pf.trace(models[0], example(), output="tags"),
        lambda: pf.fuse(models, example(), output="tags"),
        lambda: pf.prune(models[0], example(), output="tags"),
        lambda: pf.frontier(models, example(), output="tags", evaluate=[batch()]),
    ):
        with pytest.raises(TraceError, match="its entries are hidden_states, logits"):
            call()


def test_a_model_is_widened_by_names() -> None:
    model, inputs = Tagger(), Inputs.of(example())
    wide = pf.widen_net2net(model, example(), {"hidden": 24}, seed=0)
    assert torch.allclose(run(wide, inputs)[0], run(model, inputs)[0], atol=1e-5)


# ---- batches ----


def test_batches_hold_the_inputs_and_more() -> None:
    named = Inputs.of(example()).signature
    for one in (batch(), UserDict(batch()), (batch(), 3), [batch()]):
        (found,) = Batches([one], named)
        assert list(found.kwargs) == ["mask", "input_ids"]
    x = torch.ones(3)
    assert [len(i.args) for i in Batches([x, (x,), (x, 1)], Signature())] == [1, 1, 1]


@pytest.mark.parametrize(
    ("given", "data", "told"),
    [
        (example(), [{"input_ids": IDS}], "lacks mask, which example_inputs have"),
        (example(), [IDS], "pass batches as mappings"),
        (example(), [(IDS, IDS)], "pass batches as mappings"),
        (IDS, [batch()], "pass example_inputs as a mapping too"),
        (example(), batch(), r"\[mapping\] for one batch"),
        (IDS, [3], "starts with the model's 1 input"),
    ],
)
def test_batches_of_another_form_are_told(given: Any, data: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        pf.fuse([Tagger(seed=seed) for seed in (0, 1)], given, data=data)
