"""The documentation site: it builds without a warning, and nothing in it is missing, stale or loaded from elsewhere."""

from __future__ import annotations

import html
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

import partialfusion as pf
from partialfusion import nn, solvers
from partialfusion.cli import app
from partialfusion_study.experiments import EXPERIMENTS, aggregation
from partialfusion_study.study import store_of
from test_docs import ROOT, blocks

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import hooks  # noqa: E402


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, on a machine without a network."""
    folder = tmp_path_factory.mktemp("built") / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "http_proxy": "http://127.0.0.1:9",
            "https_proxy": "127.0.0.1:9",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_public_name_has_its_place_in_the_reference(site: Path) -> None:
    rendered = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    wanted = [f"partialfusion.{name}" for name in pf.__all__]
    wanted += [
        f"partialfusion.{p}.{name}" for p, names in (("nn", nn.__all__), ("solvers", solvers.__all__)) for name in names
    ]
    assert [name for name in wanted if f'id="{name}"' not in rendered] == []
    index = (DOCS / "reference" / "index.md").read_text()
    errors = {name for name in pf.__all__ if name.endswith("Error")} - {"FusionError"}
    assert [name for name in pf.__all__ if name not in errors and f"`{name}`" not in index] == []


def test_names_are_rendered_with_what_their_docstrings_say(site: Path) -> None:
    page = _text(site / "reference" / "fusing.html")
    for told in (
        "how many channels more than one model's",
        "the fraction of the channels that is kept",
        "effective parameters",
    ):
        assert told in page


def test_every_command_and_option_is_on_its_page(site: Path) -> None:
    page = _text(site / "command-line.html")
    assert "[bold]" not in page
    found = hooks.commands()
    assert {name.split()[0] for name, _ in found} == set(_root().commands)
    for name, command in found:
        assert f"partialfusion {name} " in page, name
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert option in page or not option.startswith("-"), f"{name} {option}"
            assert " ".join(parameter.help.split()) in page, f"{name} {parameter.name}"


def test_the_walk_through_of_the_commands_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "command-line.md").read_text()
    (recipe,) = blocks("yaml", text)
    Path("recipe.yaml").write_text(recipe)
    lines = [line for block in blocks("sh", text) for line in block.replace("\\\n", "").splitlines()]
    assert all(line.startswith("partialfusion ") for line in lines)
    for line in lines:
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
    assert {"fused.safetensors", "half.safetensors", "small.safetensors", "recipe.safetensors"} <= {
        p.name for p in (tmp_path / "digits").iterdir()
    }


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and pictures are files of the site; links may lead anywhere."""
    loading = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?([^\s\">]+)|<link\b[^>]*\bhref=\"?([^\s\">]+)")
    for page in site.glob("**/*.html"):
        targets = [a or b for a, b in loading.findall(page.read_text())]
        assert targets
        for target in targets:
            assert not re.match(r"(https?:)?//", target), f"{page.name}: {target}"
            start = site if target.startswith("/") else page.parent  # the page of a missing address may be anywhere
            assert (start / re.split("[?#]", target)[0].lstrip("/")).exists(), f"{page.name}: {target}"
    for style in site.glob("**/*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text()), style.name


def test_pictures_say_what_they_show() -> None:
    for page in DOCS.glob("*.md"):
        for told, target in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text()):
            assert len(told) > 20, f"{page.name}: {target}"


def test_what_the_paper_table_names_is_there() -> None:
    text = (DOCS / "paper-to-code.md").read_text()
    method, experiments = text.split("## Experiments, figures and tables")
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", method)
    assert len(tests) > 30
    for path, name in tests:
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), f"{path}::{name}"
    named = [name for name in re.findall(r"`([a-z]\w*(?:\.\w+)+)`", method) if not name.endswith(".py")]
    assert len(named) > 30
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(f"partialfusion.{module}"), attribute), name
    missing = [name for name in EXPERIMENTS if f"`{name}`" not in experiments]
    assert missing == []


def test_figures_of_the_advice_are_those_of_the_results() -> None:
    """Rows that link to a page of results, and those below without a name of their own, have their figures there."""
    page, checked = "", 0
    for line in (DOCS / "choosing.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|") or set(line) <= set("|- "):
            page = page if line.startswith("|") else ""
            continue
        if cells[0].strip("| "):
            linked = re.search(r"\]\((results/[\w-]+\.md)\)", cells[0])
            page = (DOCS / linked[1]).read_text() if linked else ""
        for figure in re.findall(r"\d\d\.\d+", " ".join(cells[1:])) if page else ():
            assert figure in page, f"{figure} in {line}"
            checked += 1
    assert checked > 140  # the tables were found


def test_figures_of_the_mix_are_those_of_the_cells() -> None:
    store = store_of(DOCS / "results")
    grids = {"split MNIST": aggregation.split_mlps("usual"), "MNIST": aggregation.mlps("usual")}
    text = (DOCS / "choosing.md").read_text()
    for name, label, alpha in (
        ("split MNIST", "split MNIST", 0.4),
        ("split MNIST", "split MNIST, ensemble", 1.0),
        ("MNIST", "MNIST, same data", 0.4),
        ("MNIST", "MNIST, ensemble", 1.0),
    ):
        grid = grids[name]
        found = [fmean(grid.accuracies(store.__getitem__, "partial OT fusion", alpha, s)) for s in grid.shares]
        assert f"| {label} | " + " | ".join(f"{v:.2f}" for v in found) + " |" in text, label


def test_every_result_is_in_the_navigation(site: Path) -> None:
    found = (site / "results" / "index.html").read_text()
    pages = [p.stem for p in (DOCS / "results").glob("*.md") if p.stem != "README"]
    assert [name for name in pages if f'href="{name}.html" class="md-nav__link"' not in found] == []


def _text(page: Path) -> str:
    """What a page says, without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page.read_text())).split())


def _root() -> object:
    from typer.main import get_command

    return get_command(app)
