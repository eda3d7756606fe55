"""Numbers, tables, chapters and the index, to the letter."""

from __future__ import annotations

import math

import pytest

from partialfusion.errors import OptionError
from partialfusion_study.report import Chapter, Entry, Figure, Line, Panel, Table, Value, Verdict
from partialfusion_study.report import markdown as md

HARD = "\u00a0"  # keeps "±" with its numbers in narrow columns


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (Value(87.4, 0.31, 5, "86.9"), "87.40 ± 0.31 (paper 86.9, +0.50)"),
        (Value(87.4, 0.31, 5), "87.40 ± 0.31"),
        (Value(87.4, 0.31, 1), "87.40"),
        (Value(87.4, None, 5), "87.40"),
        (Value(89.81, 0.0, 3, "90.0"), "89.81 ± 0.00 (paper 90.0, -0.19)"),
        (Value(0.7812, None, 1, "0.90"), "0.78 (paper 0.90, -0.12)"),  # a last digit of 0 is a digit
        (Value(75.48, None, 1, "87.30"), "75.48 (paper 87.30, -11.82)"),
        (Value(97.2, None, 1, "97"), "97.20 (paper 97, +0.20)"),
        (Value(89.996, None, 1, "90"), "90.00 (paper 90, 0.00)"),  # no sign on a difference that rounds to nothing
        (Value(1.7512, None, 1, "1.75", digits=1), "1.8 (paper 1.75, +0.05)"),  # of what is printed
        (Value(1.7512, None, 1, "1.125", digits=4), "1.7512 (paper 1.125, +0.6262)"),
        (Value(1234567.0, 1200.0, 2, "1000000", digits=0), "1,234,567 ± 1,200 (paper 1,000,000, +234,567)"),
        (Value(-3.25, 0.5, 2, "-4.0"), "-3.25 ± 0.50 (paper -4.0, +0.75)"),
        (Value(-0.001, None, 1), "0.00"),
        (Value(math.nan, None, 1), "nan"),
    ],
)
def test_values(value: Value, printed: str) -> None:
    assert md.inline(value) == printed


@pytest.mark.parametrize("paper", ["about 5", "nan", ""])
def test_the_papers_number_is_a_number(paper: str) -> None:
    with pytest.raises(OptionError, match="as it is printed"):
        Value(1.0, None, 1, paper)


def test_nothing_measured_is_a_dash_and_pipes_are_escaped() -> None:
    content = Table(
        "t", "T", ("A|B", "x"), (("p | q", None), (r"already \| done", "two\nlines"), ("", Value(1, None, 1)))
    )
    assert md.table(content).splitlines() == [
        r"| A\|B | x |",
        "| --- | ---: |",
        r"| p \| q | – |",
        r"| already \| done | two<br>lines |",
        "|  | 1.00 |",
    ]


def wide(rows: tuple[tuple[str | Value | None, ...], ...], columns: tuple[str, ...]) -> list[str]:
    return md.table(Table("t", "T", columns, rows)).splitlines()


def test_wide_tables_set_the_papers_numbers_below() -> None:
    numbers = (
        Value(84.3, 0.4, 5, "84.1"),
        Value(86.2, 0.3, 5, "86.7"),
        Value(87.4, 0.2, 5, "87.4"),
        None,
        Value(90, 0.1, 5),
    )
    rows = (("Fusion", *numbers), ("Refit", *(Value(91.0, 0.1, 5),) * 5))
    assert wide(rows, ("Method", "0", "0.2", "0.4", "0.6", "1")) == [
        "| Method | 0 | 0.2 | 0.4 | 0.6 | 1 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| Fusion | 84.30 ± 0.40 | 86.20 ± 0.30 | 87.40 ± 0.20 | – | 90.00 ± 0.10 |".replace(" ± ", f"{HARD}±{HARD}"),
        "| *paper* | 84.1 | 86.7 | 87.4 |  | – |",
        "| *difference* | +0.20 | -0.50 | 0.00 |  | – |",
        "| Refit | 91.00 ± 0.10 | 91.00 ± 0.10 | 91.00 ± 0.10 | 91.00 ± 0.10 | 91.00 ± 0.10 |".replace(
            " ± ", f"{HARD}±{HARD}"
        ),
    ]


def test_wide_tables_name_their_lines_in_the_last_column_of_text_or_in_a_new_one() -> None:
    numbers = tuple(Value(k, None, 1, str(k + 1)) for k in range(3))
    assert wide((("MNIST", "MLP", *numbers),), ("data", "net", "a", "b", "c"))[3] == "|  | *paper* | 1 | 2 | 3 |"
    assert wide((numbers,), ("a", "b", "c")) == [
        "|  | a | b | c |",
        "| --- | ---: | ---: | ---: |",
        "|  | 0.00 | 1.00 | 2.00 |",
        "| *paper* | 1 | 2 | 3 |",
        "| *difference* | -1.00 | -1.00 | -1.00 |",
    ]


def test_every_line_of_a_table_has_the_same_number_of_cells() -> None:
    numbers = tuple(Value(k, 0.1, 3, str(k + 1)) for k in range(7))
    for columns in range(1, 7):
        lines = wide((("a|b", *numbers[:columns]), ("c", *(None,) * columns)), ("x", *"abcdefg"[:columns]))
        assert {line.replace(r"\|", "").count("|") for line in lines} == {columns + 2}


def test_a_chapter_to_the_letter() -> None:
    numbers = (("A", Value(93.61, 0.31, 5, "93.8")),)
    parents = Table("parents", "The parents", ("network", "accuracy, %"), numbers, "A note.", "From 5 runs.")
    panel = Panel("greedy", "λ", "accuracy", (Line("a", (0.0,), (1.0,)),))
    sweep = Figure("sweep", "The dial [α]", (panel,), "Of five.", measured="From 9 runs.")
    content = Chapter(
        "dial",
        "The dial",
        ("Figure 1", "Table 2"),
        "Two MLPs.\n\nFive seeds.\n",
        (parents, sweep),
        (Verdict.of("It rises.", [True, False], "1 | 2", cases="steps").among("α", (0, 0.5, 1), (0, 1)),),
    )
    assert md.chapter(content) == (
        "# The dial\n\n"
        "In the paper: Figure 1, Table 2 · [All results](README.md)\n\n"
        "Two MLPs.\n\n"
        "Five seeds.\n\n"
        "## The parents\n\n"
        "| network | accuracy, % |\n"
        "| --- | ---: |\n"
        "| A | 93.61 ± 0.31 (paper 93.8, −0.19) |\n\n"
        "*Mean ± standard deviation over 5 pairs. The paper's numbers and the differences (ours minus the paper's) "
        "are in brackets. From 5 runs.*\n\n"
        "A note.\n\n"
        "## The dial [α]\n\n"
        "![The dial \\[α\\]: greedy](dial-sweep.png)\n\n"
        "*From 9 runs.*\n\n"
        "Of five.\n\n"
        "## The paper's claims\n\n"
        "| Claim | Verdict | Figures |\n"
        "| --- | --- | --- |\n"
        "| It rises. | **weaker** where measured (α 0, 1; not tested: 0.5) | 1 \\| 2; holds in 1 of 2 steps |\n"
    )


def test_a_table_says_how_many_pairs_or_networks_and_nothing_where_there_is_nothing_to_say() -> None:
    rows = (("a", Value(1, 0.1, 3)), ("b", Value(1, 0.1, 5)), ("c", Value(1, None, 9)))
    assert md.legend(Table("t", "T", ("x", "y"), rows)) == "Mean ± standard deviation over 3 to 5 pairs."
    networks = Table("t", "T", ("x", "y"), rows[:1], over="networks")
    assert md.legend(networks) == "Mean ± standard deviation over 3 networks."
    assert md.legend(Table("t", "T", ("x", "y"), rows[2:])) == ""


def test_an_index_to_the_letter() -> None:
    entries = [
        Entry(
            "dial",
            "The dial",
            ("Figure 1", "Table 2"),
            "Small alpha | large gain.",
            (Verdict("It pays.", "weaker", "1", "α 0.4; not tested: 1"),),
        ),
        Entry("extra", "Beyond", (), "New."),
    ]
    assert md.index(entries, text="What was measured.") == (
        "# Results\n\n"
        "What was measured.\n\n"
        "| Experiment | In the paper | Finding | Claims |\n"
        "| --- | --- | --- | --- |\n"
        "| [The dial](dial.md) | Figure 1, Table 2 | Small alpha \\| large gain. | "
        "1 weaker (1 in part of the cases) |\n"
        "| [Beyond](extra.md) | – | New. | – |\n\n"
        "## The paper's claims\n\n"
        "| Claim | Verdict | Figures |\n"
        "| --- | --- | --- |\n"
        "| It pays. | weaker where measured (α 0.4; not tested: 1) | [The dial](dial.md#the-papers-claims) |\n"
    )


def test_pages_have_true_minus_signs_and_a_space_before_percent_signs() -> None:
    text = "From -0.5 to 90% (-1, 2e-07), in a-1, 2026-11-18 and [part-0](page-1.md)."
    page = md.chapter(Chapter("c", "C", (), text, ()))
    assert "From −0.5 to 90 % (−1, 2e−07), in a-1, 2026-11-18 and [part-0](page-1.md)." in page
