"""Imports point one way: the order that CONTRIBUTING.md states holds for every module, wherever it imports."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "partialfusion"


def tiers() -> list[list[str]]:
    """The tiers as CONTRIBUTING.md lists them, top first; rooms of one tier stand in one line."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"```imports\n(.*?)```", text, re.S)
    assert block, "CONTRIBUTING.md states the order of imports in a block ```imports"
    return [re.findall(r"[\w.]+", line.partition("#")[0]) for line in block[1].splitlines()]


def rank(module: str) -> int | None:
    """The tier of a module below `partialfusion`, by the longest name in the list that it starts with."""
    found = [(len(room), k) for k, rooms in enumerate(tiers()) for room in rooms if f"{module}.".startswith(f"{room}.")]
    return max(found)[1] if found else None


def modules() -> dict[str, Path]:
    """Name below `partialfusion` → file."""
    paths = {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items() if name != "__init__"}


def imports(name: str, path: Path) -> Iterator[str]:
    """All that a module imports of the library, inside functions and under TYPE_CHECKING too."""
    package = [*name.split(".")] if path.name == "__init__.py" else name.split(".")[:-1]
    known = modules()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0].startswith("partialfusion"))
        if isinstance(node, ast.ImportFrom):
            if node.level == 0 and not (node.module or "").startswith("partialfusion"):
                continue
            if node.level == 0:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
                continue
            base = package[: len(package) - node.level + 1]
            target = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{target}.{alias.name}".strip(".")
                yield inner if inner in known else target


def room(module: str) -> str:
    """The entry of the list that a module belongs to."""
    rooms = [r for line in tiers() for r in line if f"{module}.".startswith(f"{r}.")]
    return max(rooms, key=len, default="")


def test_every_module_has_its_tier_and_every_entry_a_module() -> None:
    lost = [name for name in modules() if rank(name) is None and name != "fusing"]
    assert not lost, f"in no tier of CONTRIBUTING.md: {lost}"
    empty = [r for line in tiers() for r in line if not any(f"{m}.".startswith(f"{r}.") for m in modules())]
    assert not empty, f"in CONTRIBUTING.md and not in the library: {empty}"


def test_imports_point_downwards() -> None:
    wrong = []
    for name, path in modules().items():
        for target in imports(name, path):
            if name == "cli.study" and target.startswith("partialfusion_study"):
                continue  # the one place that loads the experiments, where they are installed
            if target.startswith("partialfusion"):
                wrong.append(f"{name} imports {target} by its absolute name")
            elif room(target) != room(name) and (rank(target) is None or rank(target) <= rank(name)):
                wrong.append(f"{name} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_an_upward_import_would_be_seen(tmp_path: Path) -> None:
    """Inside a function, under TYPE_CHECKING, and of a whole module."""
    path = tmp_path / "pair.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ..surgery.apply import apply\n"
        "def f():\n    from .. import api\n    from ..fusing.pipeline import Pipeline\n"
    )
    found = list(imports("kernels.pair", path))
    assert found == ["surgery.apply", "api", "fusing.pipeline"]
    assert all(rank(target) < rank("kernels.pair") for target in found)


def test_names_of_test_files_are_unique() -> None:
    """pytest imports the files of folders that are not packages by their bare names."""
    files = [p for p in (ROOT / "tests").rglob("test_*.py") if not (p.parent / "__init__.py").exists()]
    names = Counter(p.name for p in files)
    assert [name for name, times in names.items() if times > 1] == []
