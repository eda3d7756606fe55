"""Every model of the zoo: the exact ensemble at one end, itself at the other, and what one does with results."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import conformance as check
from .conformance import NOT_EXACT, TOLERANCE, Case
from .descriptions import FAMILIES
from .needs import need
from .twins import Family, unmatched
from .zoo import ZOO

# By directions: layer norms; RMS norms, rotary positions and grouped queries; a tied embedding; norms behind the sums;
# packed queries, keys and values; factors, and no stream that may be rotated.
ROTATED = ("vit", "llama", "gpt2", "bert", "nn_encoder_pre", "timm_convnext")
# Models with the layers of another: what one does with results is tested on that one, and on all in `make catalogue`.
REPEATED = {
    "deit": "vit",
    "bert_mlm": "bert",
    "roberta": "bert",
    "llama_mha": "llama",
    "mistral": "llama",
    "nn_encoder": "nn_encoder_pre",
    "timm_deit": "timm_vit",
    "timm_swin": "swin",
    "timm_convnext": "convnext",
}
# Streams and heads that keep their size when half of everything is pruned, and why.
STIFF: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="module", params=ZOO)
def case(request: pytest.FixtureRequest) -> Case:
    """One model at a time, so that its checks share what they need."""
    entry = ZOO[request.param]
    need(entry.package)
    return Case(entry)


@pytest.fixture
def family(case: Case) -> Family:
    return FAMILIES[case.entry.name]


@pytest.fixture
def first(case: Case) -> Case:
    """The case, where no other model of the zoo has its layers."""
    if case.entry.name in REPEATED:
        pytest.skip("in make catalogue")
    return case


def test_at_least_28_are_exact() -> None:
    """Every model that is not listed is held to exactness below."""
    assert set(NOT_EXACT) | set(STIFF) | set(REPEATED) <= set(ZOO) == set(FAMILIES)
    assert set(REPEATED.values()) <= set(ZOO) - set(REPEATED)
    assert len(ZOO) - len(NOT_EXACT) >= 28


def test_the_twin_made_by_hand_computes_the_same(case: Case, family: Family) -> None:
    assert not unmatched(case.model, family)
    assert check.by_hand(case, family) <= TOLERANCE


def test_every_operation_has_a_rule(case: Case) -> None:
    found = check.tracing(case)
    assert not found.unknown
    assert found.kinds["elastic"]


def test_alpha_1_is_the_ensemble_or_says_that_it_is_not(case: Case) -> None:
    gap = check.ensemble(case)
    if case.entry.name in NOT_EXACT:
        assert check.confessed(case) == (True, True), f"{gap:.1e}"
    else:
        assert gap <= TOLERANCE
        assert check.confessed(case) == (False, False)


def test_fused_with_itself_it_is_itself(case: Case) -> None:
    assert check.itself(case) <= TOLERANCE


@pytest.mark.parametrize("data", [False, True], ids=["weights", "data"])
def test_fused_with_its_twin_it_is_itself(case: Case, family: Family, data: bool) -> None:
    assert check.twin(case, family, data=data) <= TOLERANCE


def test_by_directions_everything_exact_stays_exact(case: Case, family: Family) -> None:
    """A few kinds; `make catalogue` has all of them."""
    if case.entry.name not in ROTATED:
        pytest.skip("in make catalogue")
    assert max(check.rotated(case, family).values()) <= TOLERANCE


def test_pruning_shrinks_heads_and_streams(first: Case, family: Family) -> None:
    found = check.pruned(first, family)
    assert found.runs
    assert set(found.stiff) == set(STIFF.get(first.entry.name, {}))


def test_saved_and_loaded_it_is_the_same(first: Case, tmp_path: Path) -> None:
    assert check.stored(first, tmp_path)


def test_as_directories_of_hugging_face(first: Case, tmp_path: Path) -> None:
    if first.entry.package == "transformers":
        assert not check.pretrained(first, tmp_path)


def test_the_result_trains(first: Case) -> None:
    assert not check.trains(first)


def test_the_sources_stay_as_they_were(case: Case) -> None:
    """Last of a model's checks; what failed before it must not have changed them either."""
    assert not case.untouched()
