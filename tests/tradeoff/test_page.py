"""The interactive page in a browser: loads without complaint, offline; pointing, keys, toggles and sliders work."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import Tab
from PIL import Image
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.tradeoff.point import slower_than_ensemble

SIZES = {"phone": (390, 844), "desktop": (1280, 800)}


@pytest.fixture(scope="module")
def page(two: pf.Frontier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two.save_html(tmp_path_factory.mktemp("page") / "two.html")


@pytest.fixture(scope="module")
def page_of_three(three: pf.Frontier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three.save_html(tmp_path_factory.mktemp("page") / "three.html", title="Three & more")


@pytest.fixture
def desktop(tab: Tab, page: Path) -> Tab:
    tab.show(*SIZES["desktop"])
    tab.open(page)
    return tab


def number_of(frontier: pf.Frontier, method: str, alpha: float | None, mix: tuple[float, ...]) -> int:
    return next(k for k, p in enumerate(frontier.points) if (p.method, p.alpha, p.mix) == (method, alpha, mix))


def mark(number: int) -> str:
    return f'.mark[data-number="{number}"]'


def chosen(tab: Tab) -> int:
    """The network that chart and table agree is selected."""
    numbers = tab.run("[...document.querySelectorAll('.mark.chosen')].map((m) => +m.dataset.number)")
    rows = tab.run("[...document.querySelectorAll('tr.chosen')].map((r) => +r.dataset.point)")
    assert numbers == rows
    assert len(rows) == 1
    return int(rows[0])


def colours(png: bytes) -> int:
    """How many colours a screenshot has: an empty page has one."""
    return len(Image.open(io.BytesIO(png)).convert("RGB").getcolors(1 << 24))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", ["page", "page_of_three"])
def test_it_loads_offline_without_complaint(
    tab: Tab, which: str, size: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(which)
    tab.show(*SIZES[size], scheme)
    tab.open(path)
    assert tab.complaints == []
    assert tab.requests == [path.as_uri()], "the page is one file"
    assert tab.run("document.documentElement.scrollWidth") == SIZES[size][0], "nothing runs over the side"
    assert tab.run("document.querySelectorAll('.mark').length") > 5
    dark = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(dark.replace("rgb(", "[").replace(")", "]"))) < 200) == (scheme == "dark")
    assert colours(tab.screenshot()) > 100


def test_pointing_at_a_network_tells_what_it_is(desktop: Tab, two: pf.Frontier) -> None:
    number = number_of(two, "partial-ot", 0.4, (0.25, 0.75))
    point = two.points[number]
    assert desktop.run("document.querySelector('.tip')") is None
    desktop.run(f"document.querySelector('{mark(number)}').dispatchEvent(new PointerEvent('pointerenter'))")
    text = desktop.run("document.querySelector('.tip').innerText")
    sizes = f"{point.dense:,}", f"{point.effective:,}"
    for part in ("partial-ot", "alpha 0.4", "mix 0.25 : 0.75", f"{100 * point.score:.2f} %", *sizes):
        assert part in text
    desktop.run(f"document.querySelector('{mark(number)}').dispatchEvent(new PointerEvent('pointerleave'))")
    assert desktop.run("document.querySelector('.tip').hidden") is True


def test_the_mouse_shows_and_selects(desktop: Tab, two: pf.Frontier) -> None:
    number = number_of(two, "model A", None, (1.0, 0.0))
    desktop.hover(mark(number))
    assert desktop.run("document.querySelector('.tip')?.hidden") is False
    desktop.click(mark(number))
    found = chosen(desktop)
    assert two.points[found].parameters == two.points[number].parameters
    assert desktop.complaints == []


def test_keys_go_from_network_to_network(desktop: Tab) -> None:
    assert desktop.run("document.querySelectorAll('.mark[tabindex=\"0\"]').length") == 1, "the chart is one stop"
    desktop.run("document.querySelector('.mark[tabindex=\"0\"]').focus()")
    desktop.press("Home", 36)
    seen = [desktop.run("+document.activeElement.dataset.number")]
    total = desktop.run("document.querySelectorAll('.mark').length")
    for _ in range(total - 1):
        desktop.press("ArrowRight", 39)
        seen.append(desktop.run("+document.activeElement.dataset.number"))
        assert desktop.run("document.querySelector('.tip').hidden") is False
    assert len(set(seen)) == total, "every network can be reached"
    desktop.press("ArrowLeft", 37)
    desktop.press("Enter", 13)
    assert chosen(desktop) == seen[-2] == desktop.run("+document.activeElement.dataset.number")


def test_a_window_of_another_size_keeps_the_focus(desktop: Tab) -> None:
    desktop.run("document.querySelector('.mark[tabindex=\"0\"]').focus()")
    focused = desktop.run("+document.activeElement.dataset.number")
    wide = desktop.run("document.querySelector('#chart svg').viewBox.baseVal.width")
    desktop.show(700, 800)
    desktop.settle()
    desktop.settle()
    assert desktop.run("document.querySelector('#chart svg').viewBox.baseVal.width") < wide
    assert desktop.run("+document.activeElement.dataset.number") == focused
    assert desktop.run("document.querySelector('.tip').hidden") is False


def test_toggles_take_networks_away_and_bring_them_back(desktop: Tab) -> None:
    def shown() -> list[int]:
        return sorted(desktop.run("[...document.querySelectorAll('.mark')].map((m) => +m.dataset.number)"))

    before = shown()
    desktop.click('.toggle[data-group="partial-ot"]')
    assert len(shown()) == len(before) - 9
    pressed = "document.querySelector('.toggle[data-group=\"partial-ot\"]').getAttribute('aria-pressed')"
    assert desktop.run(pressed) == "false"
    assert desktop.run("document.activeElement.dataset.group") == "partial-ot", "the focus stays"
    desktop.click('.toggle[data-group="partial-ot"]')
    assert shown() == before
    assert desktop.run("document.querySelectorAll('.front-line').length") == 1
    desktop.click('.toggle[data-group="front"]')
    assert desktop.run("document.querySelectorAll('.front-line').length") == 0
    for group in desktop.run("[...document.querySelectorAll('.toggle')].map((t) => t.dataset.group)"):
        if group not in ("front", "zoom"):
            desktop.run(
                f"document.querySelector('.toggle[data-group=' + CSS.escape({json.dumps(group)}) + ']').click()"
            )
    assert shown() == []
    assert desktop.complaints == []


def slide(tab: Tab, control: str, value: Any) -> None:
    event = "change" if control in ("method", "mix-select", "space", "axis") else "input"
    tab.run(
        f"(() => {{ const c = document.getElementById('{control}'); c.value = {json.dumps(value)}; "
        f"c.dispatchEvent(new Event('{event}', {{bubbles: true}})); }})()"
    )
    tab.settle()


def test_sliders_select_alpha_and_mix(desktop: Tab, two: pf.Frontier) -> None:
    slide(desktop, "method", "partial-ot")
    for at, alpha in enumerate((0.0, 0.4, 1.0)):
        slide(desktop, "alpha", at)
        for share, mix in enumerate(((0.25, 0.75), (0.5, 0.5), (0.75, 0.25))):
            slide(desktop, "mix", share)
            number = chosen(desktop)
            assert number == number_of(two, "partial-ot", alpha, mix)
            told = desktop.run("[document.getElementById('alpha-out').value, document.getElementById('mix-out').value]")
            assert told == [f"{alpha:g}", f"{mix[0]:g} : {mix[1]:g}"]
            assert f"{100 * two.points[number].score:.2f} %" in desktop.run(
                "document.getElementById('readout').innerText"
            )
    slide(desktop, "method", "average")
    assert desktop.run("document.getElementById('alpha').disabled") is True
    slide(desktop, "method", "no such space")
    assert "elsewhere" in desktop.run("document.getElementById('readout').innerText")
    assert desktop.complaints == []


def test_three_models_choose_their_mix_from_a_list(tab: Tab, page_of_three: Path, three: pf.Frontier) -> None:
    tab.show(*SIZES["desktop"])
    tab.open(page_of_three)
    assert tab.run("document.getElementById('mix').hidden") is True
    slide(tab, "alpha", 1)
    slide(tab, "mix-select", 1)
    assert chosen(tab) == number_of(three, "partial-ot", 0.5, (0.6, 0.2, 0.2))
    assert tab.run("document.querySelectorAll('#bars-legend span').length") == 4
    assert tab.run("document.querySelector('h1').textContent") == "Three & more"


def test_bars_and_histograms_follow_the_selection(desktop: Tab, two: pf.Frontier) -> None:
    slide(desktop, "method", "partial-ot")
    slide(desktop, "alpha", 1)
    slide(desktop, "mix", 1)
    point = two.points[chosen(desktop)]
    free = [s for s in point.spaces if s.summary.kind != "rigid"]
    labels = desktop.run("[...document.querySelectorAll('.bar')].map((b) => b.getAttribute('aria-label'))")
    assert len(labels) == len(free)
    for label, space in zip(labels, free, strict=True):
        assert f"{space.summary.fused} fused" in label
        assert f"{space.summary.isolated[0]} isolated, model A" in label
    titles = "[...document.querySelectorAll('.histogram > svg')].map((s) => s.getAttribute('aria-label'))"
    similarity, costs = desktop.run(titles)
    fused = sum(s.summary.fused for s in free)
    assert f"{fused} fused" in similarity
    assert f"{sum(s.summary.isolated[0] for s in free)} isolated" in similarity
    assert costs.endswith(f"{fused} fused pairs")
    desktop.click(".bar:nth-child(2)")
    assert desktop.run("document.getElementById('space').value") == free[1].summary.name
    assert f"{free[1].summary.fused} fused" in desktop.run(titles)[0]
    slide(desktop, "space", "")
    slide(desktop, "alpha", 2)
    assert "Nothing was matched" in desktop.run("document.getElementById('histograms').innerText")
    slide(desktop, "method", "model A")
    assert "not fused" in desktop.run("document.getElementById('bars').innerText")
    assert desktop.complaints == []


def test_the_table_selects_and_sorts(desktop: Tab, two: pf.Frontier) -> None:
    number = number_of(two, "partial-ot", 0.0, (0.75, 0.25))
    desktop.click(f'tr[data-point="{number}"]')
    assert chosen(desktop) == number
    rows = "[...document.querySelectorAll('tr[data-point]')].map((r) => +r.dataset.point)"
    desktop.click("thead th:nth-child(2) button")
    scores = [two.points[k].score for k in desktop.run(rows)]
    known = [s for s in scores if s is not None]
    assert known == sorted(known, reverse=True)
    assert scores[len(known) :] == [None] * len(two.failed)
    desktop.click("thead th:nth-child(2) button")
    assert desktop.run("document.querySelector('thead th:nth-child(2)').getAttribute('aria-sort')") == "ascending"
    assert two.points[desktop.run(rows)[0]].score == min(known)


def test_without_script_the_table_tells_everything(tab: Tab, page: Path, two: pf.Frontier) -> None:
    tab.show(*SIZES["phone"], script=False)
    try:
        tab.open(page)
        assert tab.run("document.querySelector('.board').hidden") is True
        assert "needs JavaScript" in tab.run("document.body.innerText")
        cells = tab.run("[...document.querySelectorAll('tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))")
        assert [row[0] for row in cells] == [p.method for p in two.points]
        assert [row[1] for row in cells] == [
            "failed" if p.score is None else f"{100 * p.score:.2f} %" for p in two.points
        ]
        assert colours(tab.screenshot()) > 20
    finally:
        tab.show(*SIZES["desktop"])


def test_every_control_has_a_name(desktop: Tab) -> None:
    unnamed = desktop.run(
        "[...document.querySelectorAll('button, input, select, .mark')].filter((c) => !c.hidden && "
        "!(c.getAttribute('aria-label') || c.textContent.trim() || c.labels?.length)).map((c) => c.outerHTML)"
    )
    assert unnamed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_colours_stand_out(tab: Tab, page: Path, scheme: str) -> None:
    """Contrasts of WCAG AA: 4.5 for text, 3 for what is drawn."""
    tab.show(*SIZES["desktop"], scheme)
    tab.open(page)

    def luminance(name: str) -> float:
        text = tab.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')").strip()
        parts = [int(text[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(a: str, b: str) -> float:
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    for ink, ground in (
        ("ink", "page"),
        ("ink", "card"),
        ("soft", "page"),
        ("soft", "card"),
        ("accent", "accent-soft"),
        ("warn", "warn-soft"),
        ("soft", "accent-soft"),
    ):
        assert contrast(ink, ground) >= 4.5, (ink, ground)
    for ink in ("accent", "front", "fused", "rest", *(f"m{k}" for k in range(8)), *(f"s{k}" for k in range(6))):
        assert contrast(ink, "card") >= 3, ink


def with_scores(frontier: pf.Frontier, *scores: float) -> pf.Frontier:
    """A frontier whose first networks have other scores, and the others the last of these."""
    given = [*scores, *[scores[-1]] * (len(frontier.points) - len(scores))]
    points = [p if p.score is None else replace(p, score=s) for p, s in zip(frontier.points, given, strict=True)]
    return replace(frontier, points=tuple(points))


def shown(tab: Tab, frontier: pf.Frontier, folder: Path) -> Tab:
    tab.show(*SIZES["desktop"])
    tab.open(frontier.save_html(folder / "page.html"))
    assert tab.complaints == []
    return tab


def texts(tab: Tab, selector: str) -> list[str]:
    return tab.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")


def test_ticks_are_not_rounded(tab: Tab, two: pf.Frontier, tmp_path: Path) -> None:
    shown(tab, with_scores(two, 0.85, 0.92, 0.955, 0.93, 0.94, 0.985), tmp_path)
    ticks = tab.run(
        "[...document.querySelectorAll('.axis[text-anchor=end]')].map((t) => [t.textContent, +t.getAttribute('y')])"
        ".filter(([text]) => text.endsWith('%'))"
    )
    values = [float(text.removesuffix(" %")) for text, _ in ticks]
    assert len(values) > 3
    slopes = [(b - a) / (y - x) for a, b, (_, x), (_, y) in zip(values, values[1:], ticks, ticks[1:], strict=False)]
    assert max(slopes) - min(slopes) < 1e-6 * abs(slopes[0]), "labels are as far apart as their lines"
    assert any(value % 1 for value in values), "the step is not a whole number here"


def test_it_opens_on_a_network_that_shows_something(tab: Tab, two: pf.Frontier, tmp_path: Path) -> None:
    """Not on the one with everything apart, though that is the best; on the smallest of those near the best."""
    scores = [0.5 + 0.3 * (p.alpha or 0.0) + 0.01 * (p.method == "partial-ot") for p in two.points]
    shown(tab, with_scores(two, *scores), tmp_path)
    point = two.points[chosen(tab)]
    assert (point.method, point.alpha) == ("partial-ot", 0.4)
    assert "Nothing was matched" not in tab.run("document.getElementById('histograms').innerText")
    assert texts(tab, ".histogram")


def test_scores_below_the_scale_are_told(tab: Tab, two: pf.Frontier, tmp_path: Path) -> None:
    number = number_of(two, "average", 0.0, (0.5, 0.5))
    scores = [0.9 + 0.001 * k for k in range(len(two.points))]
    scores[number] = 0.123
    shown(tab, with_scores(two, *scores), tmp_path)
    assert texts(tab, ".off-scale") == ["12.3 %"]
    scores[number + 1] = 0.2
    shown(tab, with_scores(two, *scores), tmp_path)
    assert texts(tab, ".off-scale") == ["12.3 to 20.0 %"]
    tab.click('.toggle[data-group="zoom"]')
    assert texts(tab, ".off-scale") == []


def test_the_lead_says_how_much_was_measured(desktop: Tab, tab: Tab, page_of_three: Path) -> None:
    (lead,) = texts(desktop, ".lead")
    assert "21 networks fused from one pair of networks, model A and model B; accuracy on 12 samples" in lead
    assert "standard error" in lead
    tab.open(page_of_three)
    (lead,) = texts(tab, ".lead")
    assert "one set of 3 networks, model A, model B and model C: quiet against size" in lead


def test_methods_have_colours_of_their_own(tab: Tab, page: Path) -> None:
    for scheme in ("light", "dark"):
        tab.show(*SIZES["desktop"], scheme)
        tab.open(page)

        def colour(name: str) -> str:
            return tab.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')").strip()

        methods = {colour(f"m{k}") for k in range(8)}
        others = {colour(name) for name in ("fused", "rest", "ink", *(f"s{k}" for k in range(6)))}
        assert len(methods) == 8
        assert not methods & others


def test_the_size_can_be_another(tab: Tab, two: pf.Frontier, tmp_path: Path) -> None:
    """Parameters, those of blocks, operations and times; networks stand where their size says."""
    points = [
        replace(p, latency=None if p.error else {"dense": 1.5 + k / 10, "blocks": 3.0 - k / 20, "auto": 1.0})
        for k, p in enumerate(two.points)
    ]
    shown(tab, replace(two, points=tuple(points)), tmp_path)
    axes = tab.run("[...document.getElementById('axis').options].map((o) => o.value)")
    assert axes == ["dense", "effective", "flops", "latency-dense", "latency-blocks", "latency-auto"]
    places = (
        "[...document.querySelectorAll('.mark')].map((m) => "
        "[+m.dataset.number, +m.getAttribute('transform').slice(10).split(',')[0]])"
    )
    values = {
        "effective": lambda p: p.effective,
        "flops": lambda p: p.flops,
        "latency-dense": lambda p: p.latency["dense"],
        "latency-blocks": lambda p: p.latency["blocks"],
    }
    assert texts(tab, ".slower-name") == [], "a number of parameters is not slow"
    for axis, value in values.items():
        slide(tab, "axis", axis)
        found = sorted((x, number) for number, x in tab.run(places))
        assert len(found) == len([p for p in points if p.error is None])
        for (left, one), (right, other) in itertools.pairwise(found):
            assert right - left < 1e-6 or value(points[one]) < value(points[other])
        front = tab.run("document.querySelectorAll('.front-line').length")
        assert front == 1
    ensemble = number_of(two, "ensemble", None, points[chosen(tab)].mix)
    assert texts(tab, ".slower-name") == ["slower than the ensemble"]
    edge, star = tab.run("+document.querySelector('.slower').getAttribute('x')"), dict(tab.run(places))[ensemble]
    assert 0 <= edge - star < 2
    slower = [k for k, p in enumerate(points) if "dense" in slower_than_ensemble(p, points)]
    column = 2 + axes.index("latency-dense")
    cells = f"[...document.querySelectorAll('tr[data-point]')].map((row) => row.cells[{column}].innerText)"
    assert slower
    assert [k for k, text in enumerate(tab.run(cells)) if text.endswith("!")] == slower
    assert "slower than the ensemble" in tab.run("document.querySelector('caption').innerText")
    readout = tab.run("document.getElementById('readout').innerText")
    point = points[chosen(tab)]
    assert " / ".join(f"{point.latency[form]:.2f}×" for form in ("dense", "blocks", "auto")) in readout
    assert tab.complaints == []


def test_budgets_have_their_place_on_the_slider(
    tab: Tab, models: list[nn.Module], x: Tensor, labelled: list[tuple[Tensor, Tensor]], tmp_path: Path
) -> None:
    found = pf.frontier(models[:2], x, evaluate=labelled, alphas=(0, 1), budgets=(1.2, pf.Budget(flops=1.6)))
    shown(tab, found, tmp_path)
    told = []
    for at in range(4):
        slide(tab, "alpha", at)
        told.append(tab.run("document.getElementById('alpha-out').value"))
        assert stepped(found.points[chosen(tab)]) == told[-1]
    assert sorted(told) == ["0", "1", "budget 1.2", "budget flops 1.6"]
    assert tab.run("document.getElementById('alpha-name').textContent") == "Alpha or budget"


def stepped(point: pf.Point) -> str:
    return f"{point.alpha:g}" if point.budget is None else f"budget {point.budget}"
