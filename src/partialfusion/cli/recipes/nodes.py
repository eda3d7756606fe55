"""YAML with line numbers: values are read from the nodes of a document, so that every mistake knows its line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ...errors import RecipeError

T = TypeVar("T")
Parser = Callable[[Node], Any]
Fields = dict[str, tuple[Any, Node]]  # key → value and the node it stands at

YAML = "tag:yaml.org,2002:"


class WrongError(Exception):
    """A node that does not hold what is wanted."""

    def __init__(self, node: Node, text: str) -> None:
        super().__init__(text)
        self.node = node


class Document:
    """A YAML file whose mistakes are collected, to be told all at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[tuple[int, str]] = []
        try:
            self._loader = yaml.SafeLoader(path.read_bytes())
            self.root: Node | None = self._loader.get_single_node()
        except OSError as error:
            raise RecipeError([f"{path} cannot be read: {error.strerror or error}"]) from error
        except yaml.YAMLError as error:
            raise RecipeError([f"{path}:{_line_of(error)}: not YAML: {_told(error)}"]) from error

    def wrong(self, node: Node | None, text: str) -> None:
        """Note a mistake."""
        self.problems.append((line(node) if node is not None else 1, text))

    def finish(self) -> None:
        """Raise all mistakes, in the order of their lines."""
        if self.problems:
            raise RecipeError([f"{self.path}:{number}: {text}" for number, text in sorted(self.problems)])

    def fields(self, node: Node | None, known: Mapping[str, Parser], *, what: str) -> Fields:
        """The values of a mapping that are right; keys that are not known, or twice, and wrong values are noted."""
        if not isinstance(node, MappingNode):
            self.wrong(node, f"{what} must be keys and values, such as {next(iter(known))}: …")
            return {}
        self._flatten(node)
        found: Fields = {}
        for key, value in node.value:
            name = str(key.value)
            if name not in known:
                self.wrong(key, f"unknown key {name!r} in {what}{near(name, known)}")
                continue
            try:
                found[name] = known[name](value), value
            except WrongError as error:
                self.wrong(error.node, f"{name}: {error}")
        return found

    def _flatten(self, node: MappingNode) -> None:
        """Put what `<<` merges in its place; keys given twice are noted before, for a merged one may be overridden."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.value in seen:
                self.wrong(key, f"{key.value} is given twice")
            seen.add(str(key.value))
        try:
            self._loader.flatten_mapping(node)
        except yaml.YAMLError as error:
            self.wrong(node, _told(error))


def line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def near(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    found = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else f"; known are {', '.join(known)}"


def lacks(node: Node | None, key: str, known: Mapping[str, object]) -> bool:
    """Whether a mapping has no such key, and none that is a misspelling of it."""
    if not isinstance(node, MappingNode):
        return False
    given = {str(name.value) for name, _ in node.value}
    return key not in given and not get_close_matches(key, given - known.keys(), n=1, cutoff=0.5)


def text(node: Node) -> str:
    if isinstance(node, ScalarNode) and node.tag == f"{YAML}str" and node.value:
        return str(node.value)
    raise WrongError(node, f"expected a text, got {_shown(node)}; put it in quotes if it is one")


def flag(node: Node) -> bool:
    if isinstance(node, ScalarNode) and node.tag == f"{YAML}bool":
        return node.value.lower() in ("true", "yes", "on")
    raise WrongError(node, f"expected true or false, got {_shown(node)}")


def number(node: Node) -> float:
    """A number that is finite; YAML itself takes 1e-3 for a text."""
    if isinstance(node, ScalarNode) and node.style is None:
        try:
            value = float(node.value)
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            return value
    raise WrongError(node, f"expected a number, got {_shown(node)}")


def whole(least: int) -> Callable[[Node], int]:
    def parse(node: Node) -> int:
        value = number(node)
        if value != int(value) or value < least:
            raise WrongError(node, f"expected a whole number from {least} on, got {_shown(node)}")
        return int(value)

    return parse


def choice(*known: str) -> Callable[[Node], str]:
    def parse(node: Node) -> str:
        value = text(node)
        if value not in known:
            raise WrongError(node, f"{value!r} is not known{near(value, known)}")
        return value

    return parse


def many(parse: Callable[[Node], T]) -> Callable[[Node], list[T]]:
    """A list of at least one."""

    def parse_all(node: Node) -> list[T]:
        if not isinstance(node, SequenceNode) or not node.value:
            raise WrongError(node, f"expected a list, got {_shown(node)}")
        return [parse(item) for item in node.value]

    return parse_all


def entries(node: MappingNode) -> dict[str, tuple[Node, Node]]:
    """Key → its node and its value's, for keys of the user's own."""
    found: dict[str, tuple[Node, Node]] = {}
    for key, value in node.value:
        name = str(key.value)
        if name in found:
            raise WrongError(key, f"{name} is given twice")
        found[name] = key, value
    return found


def file(node: Node) -> Path:
    """A file that is there."""
    path = Path(text(node))
    if not path.is_file():
        raise WrongError(node, f"{path}: there is no such file")
    return path


def _shown(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return repr(node.value) if node.value else "nothing"
    return "keys and values" if isinstance(node, MappingNode) else "a list"


def _line_of(error: yaml.YAMLError) -> int:
    mark = getattr(error, "problem_mark", None)
    return 1 if mark is None else int(mark.line) + 1


def _told(error: yaml.YAMLError) -> str:
    told = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return " ".join(str(told).split())
