"""Pictures: what is on them, that nothing overlaps, and that they are the same twice."""

from __future__ import annotations

import io
import math
import random
import subprocess
import sys
from itertools import combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Text
from PIL import Image

from partialfusion.errors import OptionError
from partialfusion_study.report import Figure, Line, Panel
from partialfusion_study.report.figures import DPI, draw, png
from partialfusion_study.report.line_styles import BESIDE_MAP, PALETTE
from partialfusion_study.report.panels import short_number

ALPHAS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
LAMBDAS = tuple(k / 10 for k in range(11))


def sweep(title: str, dip: float) -> Panel:
    """Seven alphas over eleven interpolation factors, two parents and the ensemble."""

    def curve(alpha: float) -> tuple[float, ...]:
        return tuple(88 + (6 * alpha - dip * (1 - alpha)) * math.sin(math.pi * x) for x in LAMBDAS)

    lines = [Line(f"α = {a:g}", LAMBDAS, curve(a), spread=(0.5,) * 11, colour=a) for a in ALPHAS]
    lines += [Line(f"model {m}", (0.5,), (y,), style="dashed") for m, y in (("A", 87.0), ("B", 85.5))]
    lines.append(Line("ensemble", LAMBDAS, curve(1.0), style="dotted"))
    return Panel(title, "interpolation factor λ", "test accuracy, %", tuple(lines))


def histogram(seed: int, *labels: str) -> Panel:
    numbers = random.Random(seed)
    lines = (Line(label, (), tuple(numbers.gauss(seed, 1) for _ in range(200))) for label in labels)
    return Panel(f"layer {seed}", "distance", "channels", tuple(lines), histogram=True)


def one(*lines: Line, **options: Any) -> Figure:
    return Figure("f", "F", (Panel("", "x", "y", lines, **options),))


SWEEP = Figure("sweep", "Sweep", (sweep("fixed point", 5), sweep("greedy", 9), sweep("activations", 14)))
HISTOGRAMS = Figure("histograms", "Histograms", tuple(histogram(k, "independent networks", "split") for k in range(6)))
PRUNING = one(
    Line("unstructured pruning", (1e6, 2e6, 8e6), (40.0, math.nan, 90.0)),
    Line("generalised pruning (clustering)", (1e6, 2e6, 8e6), (70.0, 80.0, 91.0), spread=(2.0, 1.0, 1.0)),
    Line("Net2WiderNet", (2e6, 4e6), (50.0, 75.0), style="points"),
    Line("random widen", (2e6, 4e6), (45.0, 60.0), style="points"),
)
CROWDED = Figure(
    "crowded",
    "Crowded",
    tuple(
        Panel(
            "a title of a panel that has many more words than one line can hold",
            "channels, the frozen layers' channels included",
            "accuracy of the fused networks on the whole of the test set, in percent",
            (Line(f"{k} layers frozen at the ensemble's size", (1000.0, 3000.0), (60.0, 80.0)),),
        )
        for k in range(4)
    ),
    columns=4,
)
FIGURES = (SWEEP, HISTOGRAMS, PRUNING, CROWDED)


def dashes(ax: Axes) -> list[str]:
    return [line.get_linestyle() for line in ax.get_lines()]


def test_a_sweep_has_three_panels_of_ten_lines_and_one_legend() -> None:
    canvas = draw(SWEEP)
    assert [len(ax.get_lines()) for ax in canvas.axes] == [10, 10, 10]
    assert [len(ax.collections) for ax in canvas.axes] == [7, 7, 7]  # bands
    (legend,) = canvas.legends
    names = [f"α = {a:g}" for a in ALPHAS]
    assert [text.get_text() for text in legend.get_texts()] == [*names, "model A", "model B", "ensemble"]
    assert len({ax.get_ylim() for ax in canvas.axes}) == 1
    assert [bool(ax.get_ylabel()) for ax in canvas.axes] == [True, False, False]


def test_lines_hold_the_numbers_they_were_given() -> None:
    line = draw(SWEEP).axes[1].get_lines()[2]
    assert tuple(np.asarray(line.get_xdata())) == LAMBDAS
    assert tuple(np.asarray(line.get_ydata())) == SWEEP.panels[1].lines[2].y


def test_alpha_brightens_and_references_stand_apart() -> None:
    def brightness(colour: str) -> float:
        red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    colours = [to_hex(line.get_color()) for line in draw(SWEEP).axes[0].get_lines()]
    alphas = [brightness(c) for c in colours[:7]]
    assert alphas == sorted(alphas)
    assert len(set(alphas)) == 7
    assert tuple(colours[7:]) == BESIDE_MAP[:3]


def test_a_label_has_one_colour_in_all_panels() -> None:
    first = Panel("", "x", "y", (Line("a", (0.0,), (1.0,)), Line("b", (0.0,), (1.0,))))
    second = Panel("", "x", "y", (Line("b", (0.0,), (2.0,)), Line("c", (0.0,), (1.0,))))
    canvas = draw(Figure("f", "F", (first, second)))
    assert [line.get_color() for ax in canvas.axes for line in ax.get_lines()] == [PALETTE[k] for k in (0, 1, 1, 2)]
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["a", "b", "c"]


def test_every_style() -> None:
    x, y = (0.0, 1.0), (1.0, 2.0)
    ax = draw(one(*(Line(s, x, y, style=s) for s in ("line", "dashed", "dotted", "points")))).axes[0]
    assert [line.get_marker() for line in ax.get_lines()] == ["o", "None", "None", "o"]
    line, dashed, dotted, points = dashes(ax)
    assert line == "-"
    assert dashed == dotted == "--"  # what matplotlib calls a pattern of one's own
    assert points == "None"
    patterns = {line._unscaled_dash_pattern[1] for line in ax.get_lines()[1:3]}  # type: ignore[attr-defined]
    assert len(patterns) == 2


def test_points_of_different_labels_have_different_markers() -> None:
    markers = [line.get_marker() for line in draw(PRUNING).axes[0].get_lines()[2:]]
    assert len(set(markers)) == 2


def test_a_dashed_line_of_one_point_crosses_the_panel() -> None:
    ax = draw(one(Line("a", (0.0, 4.0), (1.0, 2.0)), Line("level", (0.0,), (1.5,), style="dashed"))).axes[0]
    level = ax.get_lines()[1]
    assert tuple(np.asarray(level.get_xdata())) == (0, 1)  # in widths of the panel
    assert level.get_transform() == ax.get_yaxis_transform(which="grid")


def test_what_is_not_finite_is_a_gap() -> None:
    ax = draw(one(Line("a", (0.0, 1.0, 2.0, 3.0), (1.0, math.nan, math.inf, 2.0), spread=(0.1,) * 4))).axes[0]
    drawn = np.asarray(ax.get_lines()[0].get_ydata())
    assert np.isnan(drawn).tolist() == [False, True, True, False]
    assert all(map(math.isfinite, ax.get_ylim()))


def test_a_histogram_counts_every_value_in_bins_that_all_panels_share() -> None:
    canvas = draw(HISTOGRAMS)
    assert len(canvas.axes) == 6
    stairs = [patch.get_data() for ax in canvas.axes for patch in ax.patches]  # type: ignore[attr-defined]
    assert len(stairs) == 6 * 2 * 2  # a fill and an outline a line
    for data in stairs:
        assert data.values.sum() == 200
        np.testing.assert_array_equal(data.edges, stairs[0].edges)


def test_histograms_of_different_things_have_bins_of_their_own() -> None:
    panels = [histogram(k, "a") for k in range(2)]
    other = Panel("", "cosine", "channels", panels[1].lines, histogram=True)
    first, second = (ax.patches[0].get_data() for ax in draw(Figure("f", "F", (panels[0], other))).axes)  # type: ignore[attr-defined]
    assert not np.array_equal(first.edges, second.edges)


def test_whole_numbers_get_a_bin_each() -> None:
    ax = draw(one(Line("a", (), (1.0, 1.0, 2.0, 4.0)), histogram=True)).axes[0]
    data = ax.patches[0].get_data()  # type: ignore[attr-defined]
    assert data.edges.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert data.values.tolist() == [2, 1, 0, 1]


def test_many_histograms_are_outlines() -> None:
    canvas = draw(Figure("f", "F", (histogram(0, *"abcd"),)))
    assert [patch.get_fill() for patch in canvas.axes[0].patches] == [False] * 4


def test_a_panel_without_data_says_so() -> None:
    for lines in ((), (Line("a", (), ()),), (Line("a", (1.0,), (math.nan,)),)):
        for histogram_ in (False, True):
            canvas = draw(one(*lines, histogram=histogram_))
            assert [text.get_text() for text in canvas.axes[0].texts] == ["no data"]
            assert not canvas.legends
            assert png(one(*lines, histogram=histogram_))


def test_logarithmic_axes_tick_at_the_points() -> None:
    widths = (25.0, 50.0, 100.0, 200.0, 400.0)
    ax = draw(one(Line("a", widths, (1.0, 2.0, 3.0, 4.0, 5.0)), log_x=True)).axes[0]
    ax.figure.draw_without_rendering()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["25", "50", "100", "200", "400"]
    many = tuple(1e4 * 1.1**k for k in range(30))
    ax = draw(one(Line("a", many, many), log_x=True)).axes[0]
    ax.figure.draw_without_rendering()
    low, high = ax.get_xlim()
    shown = [t.get_text() for t, x in zip(ax.get_xticklabels(), ax.get_xticks(), strict=True) if low <= x <= high]
    assert shown == ["10k", "20k", "50k", "100k"]


@pytest.mark.parametrize(
    ("number", "printed"),
    [(1.5e6, "1.5M"), (20000, "20k"), (2000, "2000"), (0.25, "0.25"), (-3e9, "−3G"), (0, "0")],
)
def test_short_numbers(number: float, printed: str) -> None:
    assert short_number(number) == printed


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_pictures_are_small_opaque_and_the_same_twice(figure: Figure) -> None:
    data = png(figure)
    assert data == png(figure)
    assert len(data) < 150_000
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == "PNG"
        assert picture.width <= 1800
        assert "transparency" not in picture.info
        pixels = np.asarray(picture.convert("RGB"))
    assert (pixels[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()
    assert 0.01 < (pixels < 200).any(axis=2).mean() < 0.5  # neither blank nor black


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_no_text_overlaps_or_leaves_the_picture(figure: Figure) -> None:
    canvas = draw(figure)
    agg = FigureCanvasAgg(canvas)
    agg.draw()
    texts = [text for legend in canvas.legends for text in legend.get_texts()]
    for ax in canvas.axes:
        texts += [ax.title, ax.xaxis.label, ax.yaxis.label, *_tick_labels(ax.xaxis), *_tick_labels(ax.yaxis)]
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_text() and t.get_visible()]
    assert [name for name, box in boxes if not _is_within(box, canvas.bbox)] == []
    assert min(text.get_fontsize() for text in texts) >= 8
    overlapping = [(a, b) for (a, x), (b, y) in combinations(boxes, 2) if x.overlaps(y)]
    assert overlapping == []
    for legend in canvas.legends:
        assert not any(legend.get_window_extent().overlaps(ax.get_window_extent()) for ax in canvas.axes)
    left, right = min(ax.bbox.x0 for ax in canvas.axes), max(ax.bbox.x1 for ax in canvas.axes)
    assert right - left > 0.75 * canvas.bbox.width  # the legend leaves the panels their room
    assert canvas.dpi == DPI


def _tick_labels(axis: Axis) -> list[Text]:
    """Of the ticks in view; matplotlib keeps some that it does not draw."""
    low, high = sorted(axis.get_view_interval())
    return [
        tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label1.get_visible()
    ]


def _is_within(box: Any, whole: Any) -> bool:
    return bool(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1)


def test_the_users_settings_neither_matter_nor_change() -> None:
    before = png(PRUNING)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "axes.xmargin": 0.4, "axes.titlepad": 40}):
        names = matplotlib.rcParams.keys() - {"backend"}  # to ask for the backend is to start it
        settings = {name: matplotlib.rcParams[name] for name in names}
        assert png(PRUNING) == before
        assert {name: matplotlib.rcParams[name] for name in names} == settings


def test_drawing_leaves_pyplot_alone() -> None:
    code = """
import sys
from partialfusion_study.report import Figure, Line, Panel
from partialfusion_study.report.figures import png
png(Figure("f", "F", (Panel("", "x", "y", (Line("a", (0.0, 1.0), (1.0, 2.0)),)),)))
sys.exit("matplotlib.pyplot" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for make in (draw, png):
        with pytest.raises(OptionError, match=r"pip install 'partialfusion\[study\]'"):
            make(PRUNING)
