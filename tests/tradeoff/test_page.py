"""The interactive page in a browser: loads without complaint, offline; pointing, keys, toggles and sliders work."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from browser import Tab
from PIL import Image

import partialfusion as pf

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
    for part in ("partial-ot", "alpha 0.4", "mix 0.25 : 0.75", f"{100 * point.score:.2f} %", f"{point.parameters:,}"):
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
    event = "change" if control in ("method", "mix-select", "space") else "input"
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
