"""What becomes of an error inside a rule, in strict mode (as the whole suite runs) and without it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.blueprint import NoRuleError, RuleError
from partialfusion.blueprint.registry import RULES, STRICT, is_strict
from partialfusion.errors import TraceError


@torch.library.custom_op("stricttest::bend", mutates_args=())
def bend(x: Tensor) -> Tensor:
    return x.tanh()


@bend.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(bend(bend(self.a(x))))))


def broken(t: Any, x: Any) -> Any:
    raise ValueError("too few dimensions\nfor this rule")


def uncovered(t: Any, x: Any) -> Any:
    raise NoRuleError("not for this case")


def misshapen(t: Any, x: Any) -> Any:
    return t.fixed((2, 2))


def listed(t: Any, x: Any) -> Any:
    return [t.merge(x)]


def nothing(t: Any, x: Any) -> Any:
    return None


@pytest.fixture
def use_rule() -> Iterator[Callable[[Any], None]]:
    yield lambda rule: pf.register_rule("stricttest.bend")(rule)
    RULES.pop("stricttest.bend", None)


def trace() -> pf.Blueprint:
    return pf.trace(Net(), torch.randn(2, 6))


def test_strict_mode_is_on_in_tests_and_in_their_subprocesses() -> None:
    assert is_strict()
    code = "from partialfusion.blueprint.registry import is_strict; assert is_strict()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("0", False), ("", False), (None, False)])
def test_the_environment_sets_strict_mode(monkeypatch: pytest.MonkeyPatch, value: str | None, strict: bool) -> None:
    if value is None:
        monkeypatch.delenv(STRICT)
    else:
        monkeypatch.setenv(STRICT, value)
    assert is_strict() == strict


def test_an_error_in_a_rule_ends_a_strict_trace(use_rule: Callable[[Any], None]) -> None:
    use_rule(broken)
    with pytest.raises(
        RuleError, match=r"the rule of stricttest.bend failed: ValueError: too few dimensions\. "
    ) as info:
        trace()
    assert isinstance(info.value, TraceError)
    assert isinstance(info.value.__cause__, ValueError)
    assert "\n" not in str(info.value)


def test_an_error_in_a_rule_is_a_warning_otherwise(
    use_rule: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(STRICT)
    use_rule(broken)
    with caplog.at_level(logging.WARNING):
        blueprint = pf.trace(Net(), torch.randn(2, 6), check=False)
    (record,) = [r for r in caplog.records if "stricttest" in r.getMessage()]
    assert record.levelno == logging.WARNING
    assert record.name.startswith("partialfusion.")
    assert record.getMessage() == (
        "the rule of stricttest.bend failed: ValueError: too few dimensions; the channels that it touches become rigid"
    )
    assert blueprint["a"].kind == "rigid"
    assert blueprint["a"].reasons == ("the rule of stricttest.bend failed: ValueError: too few dimensions",)
    assert blueprint["b"].kind == "elastic"
    assert blueprint.unknown == {"stricttest.bend": 1}  # the other use touches no channels


@pytest.mark.parametrize("rule", [None, uncovered])
def test_a_case_without_a_rule_is_neither(
    use_rule: Callable[[Any], None], rule: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if rule is not None:
        use_rule(rule)
    with caplog.at_level(logging.INFO):
        blueprint = trace()
    assert not [r for r in caplog.records if "stricttest" in r.getMessage()]
    assert blueprint["a"].reasons == ("stricttest.bend has no rule",)
    assert blueprint.unknown == {"stricttest.bend": 1}  # the other use touches no channels


@pytest.mark.parametrize("rule", [misshapen, listed, nothing])
def test_a_rule_that_returns_the_wrong_thing_is_broken_too(
    use_rule: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch, rule: Any
) -> None:
    use_rule(rule)
    with pytest.raises(RuleError, match=r"returned values of shapes .* for tensors of shapes \[\(2, 8\)\]"):
        trace()
    monkeypatch.delenv(STRICT)
    assert trace()["a"].kind == "rigid"


def test_fusing_says_so_too(use_rule: Callable[[Any], None]) -> None:
    use_rule(broken)
    with pytest.raises(RuleError, match="too few dimensions"):
        pf.fuse([Net(), Net()], torch.randn(2, 6), alpha=0.5)


class Uses(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.a, self.weight = function, nn.Linear(6, 8), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.a(x), self.weight)


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (lambda x, w: nn.functional.linear(x, x[0]), "linear"),
        (lambda x, w: nn.functional.linear(x, w), "linear"),
        (lambda x, w: torch.einsum("bij,bjj->bi", x.view(2, 2, 2, 2)[0], x.view(2, 2, 2, 2)[1]), "einsum"),
        (lambda x, w: torch.einsum("bij->bji", x[None]), "einsum"),
    ],
)
def test_cases_that_the_librarys_rules_leave_alone_are_no_errors(
    function: Callable[[Tensor, Tensor], Tensor], operation: str
) -> None:
    assert dict(pf.trace(Uses(function), torch.randn(2, 6)).unknown or {}) == {operation: 1}


def test_softmax_of_a_scalar_is_covered() -> None:
    blueprint = pf.trace(Uses(lambda x, w: x * torch.softmax(x.sum(), 0)), torch.randn(2, 6))
    assert not blueprint.unknown


def test_a_size_that_depends_on_values_is_refused() -> None:
    with pytest.raises(TraceError, match=r"aten\.\w+ returns a tensor of shape .* depends on the values"):
        pf.trace(Uses(lambda x, w: x[x > 0]), torch.randn(2, 6))
