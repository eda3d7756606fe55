"""Time of a forward pass, fused and not."""

from __future__ import annotations

from collections.abc import Sequence

from ..cell import Cell
from ..cells import Clock
from ..report import Item, Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .settings import Scale

PAPER = {
    100: (0.057, 2.08, 0.95, 2.45),
    500: (0.061, 2.11, 1.03, 2.50),
    3000: (0.231, 2.01, 2.03, 2.24),
    8000: (1.249, 2.02, 2.24, 1.69),
    12000: (2.854, 2.02, 1.96, 1.59),
    16000: (4.878, 2.00, 2.27, 1.81),
}


ROUNDS = {100: 2000, 500: 1000, 3000: 100}  # by width; wider ones have FEWEST
FEWEST = 40
FORMS = {"ensemble": "ensemble", "dense": "dense form", "blocks": "block form"}


def clocks(scale: Scale) -> list[Clock]:
    if scale == "quick":
        return [Clock(32, rounds=5)]
    return [Clock(width, rounds=ROUNDS.get(width, FEWEST)) for width in PAPER if scale == "full" or width <= 3000]


def cells(scale: Scale) -> list[Cell]:
    return list(clocks(scale))


def report(scale: Scale, results: Results) -> Report:
    rows: list[Row] = []
    for clock in clocks(scale):
        found, paper = results(clock), PAPER.get(clock.width, (None,) * 4)
        cells: list[Item] = [str(clock.width), f"{found['calls']:,}", Value.of([found["milliseconds"]], paper=paper[0])]
        for name, published in zip(FORMS, paper[1:], strict=True):
            cells += [
                Value.of([found[name]], paper=published),
                f"{found[f'{name}_low']:.2f} to {found[f'{name}_high']:.2f}",
            ]
        rows.append((*cells, "2.25", "1.75"))
    heads = [head for words in FORMS.values() for head in (words, "quartiles")]
    columns = ("width", "calls", "single (ms)", *heads, "FLOPs, dense form", "FLOPs, block form")
    text = (
        "MLPs with three hidden layers, alpha = 0.5, batches of 64. Calls are interleaved: in every round each network "
        "is called once, in a new order. Numbers are medians over the rounds of the CPU time of one thread relative to "
        "the single network in the same round, with their quartiles, so that other load on the machine hardly matters. "
        "The paper measured on an RTX A6000 GPU, we on the CPU named below. Widths from 8,000 on, which need more "
        "memory and time, are left out except at the full scale."
    )
    last = results(clocks(scale)[-1])
    ratios = ", ".join(
        f"{words} {last[name]:.2f}× ({last[f'{name}_low']:.2f} to {last[f'{name}_high']:.2f})"
        for name, words in FORMS.items()
    )
    finding = f"At width {clocks(scale)[-1].width}, relative to one network, with quartiles: {ratios}."
    return Report(finding, text, (Table("times", "Time relative to one network", columns, tuple(rows)),))


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    found = {clock.width: results(clock) for clock in clocks(scale)}
    narrow, wide = found[min(found)], {width: times for width, times in found.items() if width >= 3000}
    return [
        Verdict.of(
            "For wide layers the block form takes roughly the time that its FLOPs predict, 1.75 times one network.",
            [abs(times["blocks"] - 1.75) < 0.2 for times in wide.values()],
            ", ".join(f"{times['blocks']:.2f} (width {width})" for width, times in wide.items()),
        ),
        Verdict.of(
            "There it is faster than the ensemble.",
            [times["blocks"] < times["ensemble"] for times in wide.values()],
            ", ".join(
                f"{times['blocks']:.2f} against {times['ensemble']:.2f} (width {width})"
                for width, times in wide.items()
            ),
        ),
        Verdict.of(
            "For narrow layers the dense form is faster than the block form and than the ensemble.",
            [narrow["dense"] < narrow["blocks"], narrow["dense"] < narrow["ensemble"]],
            f"width {min(found)}: dense {narrow['dense']:.2f}, blocks {narrow['blocks']:.2f}, ensemble "
            f"{narrow['ensemble']:.2f}; faster than the others",
        ),
    ]


EXPERIMENT = Experiment("wallclock1", "Wall-clock time of fused networks", ("Table 6",), "none", cells, report, claims)
