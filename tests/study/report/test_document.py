"""What cannot be printed or drawn is refused where it is made."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest

from partialfusion.errors import OptionError
from partialfusion_study.report import Chapter, Entry, Figure, Line, Panel, Table, Value

LINE = Line("a", (0.0, 1.0), (1.0, 2.0))
PANEL = Panel("", "x", "y", (LINE,))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Line("a", (0.0,), (1.0, 2.0)), "'a' has 1 x for 2 y"),
        (lambda: Line("a", (0.0, 1.0), ()), "'a' has 2 x for 0 y"),
        (lambda: Line("a", (0.0,), (1.0,), spread=(1.0, 2.0)), "2 spreads for 1 y"),
        (lambda: Line("a", (0.0,), (1.0,), style="wavy"), "'wavy'"),  # type: ignore[arg-type]
        (lambda: Line("a", (0.0,), (1.0,), colour=1.5), "1.5"),
        (lambda: Panel("p", "x", "y", (Line("a", (), (1.0, 2.0)),)), "0 x for 2 y"),
        (lambda: Panel("p", "x", "y", (LINE,), log_x=True), "x = 0.0 on a logarithmic axis"),
        (lambda: Panel("p", "x", "y", (), histogram=True, log_x=True), "histogram on a logarithmic axis"),
        (lambda: Figure("f", "F", ()), "no panels"),
        (lambda: Figure("f", "F", (PANEL,), columns=0), "0 columns"),
        (lambda: Figure("../f", "F", (PANEL,)), "'../f'"),
        (lambda: Table("t", "T", (), ()), "no columns"),
        (lambda: Table("t", "T", ("a", "b"), (("1", "2"), ("1",))), "row 1 of table 't' has 1 cells for 2 columns"),
        (lambda: Value(1.0, None, 0), "count is 0"),
        (lambda: Value(1.0, -0.1, 3), "negative"),
        (lambda: Value(1.0, None, 1, digits=-1), "digits of a value is -1"),
        (lambda: Value.of([]), "no samples"),
        (lambda: Chapter("readme", "C", (), "", ()), "name of the index"),
        (lambda: Chapter("c", "C", (), "", (Table("t", "T", ("a",), ()),) * 2), "two parts named 't'"),
        (lambda: Entry("a b", "E", (), ""), "'a b'"),
    ],
)
def test_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(OptionError) as error:
        make()
    assert said in str(error.value)


def test_values_of_samples() -> None:
    samples = [87.1, 87.4, 87.9, 86.8]
    value = Value.of(samples, paper="86.9")
    assert value.mean == pytest.approx(sum(samples) / 4)
    assert value.std == pytest.approx(math.sqrt(statistics.variance(samples)))
    assert (value.count, value.paper) == (4, "86.9")
    assert Value.of([3.0]) == Value(3.0, None, 1)


def test_a_histogram_needs_no_x() -> None:
    raw = Line("a", (), (1.0, 2.0, 2.5))
    assert Panel("p", "x", "y", (raw,), histogram=True).lines == (raw,)


def test_lines_without_a_finite_value_are_blank() -> None:
    assert Line("a", (), ()).is_blank
    assert Line("a", (0.0, 1.0), (math.nan, math.inf)).is_blank
    assert not Line("a", (0.0, 1.0), (math.nan, 0.0)).is_blank
