"""The examples of the README and of all pages run as they are printed, and the code that pages name exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import tomllib
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import partialfusion as pf
from partialfusion.blueprint.registry import RULES
from partialfusion.cli import app
from transformer.needs import allow_torchvision, need

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def check_readme(scope: dict[str, Any], printed: str, folder: Path) -> None:
    assert tuple(scope["logits"].shape) == (2, 10)
    assert scope["one"].count.ratio <= 1
    scores = [float(score) for score in re.findall(r"([\d.]+)%", printed)]
    a, b, average, fused, ensemble = scores
    assert average < min(a, b) < max(a, b) < fused <= ensemble + 1, "the example shows the benefit"
    assert scope["small"].model.hidden1.out_features == scope["quick"].model.hidden1.out_features == 12
    assert scope["large"].plan["hidden1"].width == 24 + 6
    assert scope["large"].plan["hidden2"].width == 24 + 12
    assert {"fused.safetensors", "fused.onnx"} <= {p.name for p in folder.iterdir()}
    for part in ("converged", "self-check", "combined", "source 0: Net"):
        assert part in printed


def check_custom_operations(scope: dict[str, Any], printed: str, folder: Path) -> None:
    assert scope["blueprint"]["a"].kind == "elastic"


def test_the_table_of_options_is_complete() -> None:
    listed = (ROOT / "docs" / "options.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE)
    options = [p.name for p in inspect.signature(pf.fuse).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert sorted(named) == sorted(options)


def test_extras_are_named_where_they_are_needed() -> None:
    """Every extra that users install is in [all], and the README says what for."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    users = extras.keys() - {"dev", "docs"}
    assert set(re.fullmatch(r"partialfusion\[(.*)\]", everything)[1].split(",")) == users
    (listed,) = re.findall(r"\| extra \|.*?\n\n", README, re.DOTALL)
    assert set(re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|[^|]*\|\n)", listed)) >= users


CHECKS = {"README.md": check_readme, "docs/custom-operations.md": check_custom_operations}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "examples").glob("*.md"))]
WITH_CODE = {str(page.relative_to(ROOT)): code for page in PAGES if (code := blocks("python", page.read_text()))}


@pytest.mark.parametrize("page", WITH_CODE)
def test_python_runs_as_printed(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page in their order, in one scope, in an empty folder; they print what the page quotes."""
    if "from transformers" in "".join(WITH_CODE[page]):
        need("transformers")
        allow_torchvision()
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "page"}
    known = dict(RULES)
    with torch.random.fork_rng():
        for number, code in enumerate(WITH_CODE[page], 1):
            exec(compile(code, f"{page}, block {number}", "exec"), scope)
    for name in RULES.keys() - known.keys():  # those of the page's own operations
        del RULES[name]
    printed = capsys.readouterr().out
    words = {wording(line) for line in printed.splitlines()}
    quoted = [line for text in blocks("text", (ROOT / page).read_text()) for line in text.splitlines()]
    assert [line for line in quoted if wording(line) not in words] == []
    CHECKS.get(page, lambda *_: None)(scope, printed, tmp_path)


def wording(line: str) -> str:
    """A line of output without its numbers, which may differ between machines, and without its alignment."""
    return " ".join(re.sub(r"\d[\d.,]*(e-?\d+)?|[%±×*]|-{2,}", " ", line).split())


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("partialfusion ")]
    commands = [
        line for line in lines if not line.startswith("partialfusion study")
    ]  # see tests/study/test_commands.py
    assert [c.split()[1] for c in commands] == ["demo", "trace", "fuse", "convert", "prune", "frontier", "run"]
    (recipe,) = blocks("yaml")
    (tmp_path / "recipe.yaml").write_text(recipe)
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
    written = {p.name for p in (tmp_path / "digits").iterdir()}
    assert {"fused.safetensors", "fused.pt", "small.safetensors", "frontier.html", "recipe.safetensors"} <= written
    assert (tmp_path / "partialfusion-demo.html").exists()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target


NAMING_CODE = ("docs/paper-to-code.md", "docs/how-it-works.md", "CONTRIBUTING.md")
FOLDERS = (ROOT, ROOT / "src", ROOT / "src" / "partialfusion", ROOT / "tests")
FOREIGN = {"torch", "nn", "np", "result"}  # first parts of dotted names that are not the library's
BUILT = {"site/", ".venv"}  # made by make, not part of a checkout
PATH = r"[\w.-]*(?:/[\w.-]+)+/?(?:::\w+)?|[\w-]+/|\w+\.(?:py|md|toml|txt)(?:::\w+)?"
DOTTED = r"[A-Za-z_]\w*(?:\.\w+)+"


def named_code(text: str) -> set[str]:
    """The paths and dotted names among the code spans of a page: `fusing/align/`, `kernels.pair.KernelPair`."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {span for span in spans if re.fullmatch(f"{PATH}|{DOTTED}", span)} - BUILT


def is_there(name: str) -> bool:
    """Whether a path exists (and defines the function after `::`), or a dotted name can be imported."""
    file, _, function = name.partition("::")
    if "/" in file or re.search(r"\.(py|md|toml|txt)$", file):
        found = [folder / file for folder in FOLDERS if (folder / file).exists()]
        found = found or list((ROOT / "src").rglob(file.rstrip("/")))  # relative to a package that the text names
        return any(not function or f"def {function}(" in path.read_text() for path in found)
    first, *rest = name.split(".")
    if first[0].isupper():
        return rest[0] in class_members().get(first, ())
    packages = {"pf": "partialfusion", "partialfusion": "partialfusion", "partialfusion_study": "partialfusion_study"}
    parts = [*packages.get(first, f"partialfusion.{first}").split("."), *rest]
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
            attrgetter(".".join([*parts[count:], "__class__"]))(module)
        except (ImportError, AttributeError):
            continue
        return True
    return False


@cache
def class_members() -> dict[str, set[str]]:
    """Class of the library → its methods and fields."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = found.setdefault(node.name, set())
                names.update(part.name for part in node.body if isinstance(part, ast.FunctionDef))
                names.update(ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign))
    return found


@pytest.mark.parametrize("page", NAMING_CODE)
def test_the_code_that_pages_name_is_there(page: str) -> None:
    names = {name for name in named_code((ROOT / page).read_text()) if name.split(".")[0] not in FOREIGN}
    assert len(names) > 10
    assert sorted(name for name in names if not is_there(name)) == []


def test_a_stale_name_is_noticed() -> None:
    text = "`kernels/pair.py`, `kernels/gone.py`, `gone/`, `kernels.pair.gone`, `gone.pair`, `KernelPair.gone`"
    stale = {"kernels/gone.py", "gone/", "kernels.pair.gone", "gone.pair", "KernelPair.gone"}
    assert {name for name in named_code(text) if not is_there(name)} == stale
    assert is_there("KernelPair.write_matrix")
    assert is_there("kernels/test_choice.py::test_deletion")
    assert not is_there("kernels/test_choice.py::test_gone")


PUBLIC_PAGES = [page for page in PAGES if "results" not in page.parts]


@pytest.mark.parametrize("page", PUBLIC_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_networks_that_a_reader_can_see(page: Path) -> None:
    """Python examples bring their own networks; the demo's is for commands on the demo's files."""
    assert not [code for code in blocks("python", page.read_text()) if re.search("partialfusion_study|demo", code)]


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda script: script.name)
def test_examples_use_networks_that_a_reader_can_see(script: Path) -> None:
    assert not re.search("partialfusion_study|demo", script.read_text())
