"""YAML with line numbers: values are read from the nodes of a document, so that every error has its line."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ...errors import RecipeError

T = TypeVar("T")
Parser = Callable[[Node], Any]
Fields = dict[str, tuple[Any, Node]]  # key → value and its node

YAML = "tag:yaml.org,2002:"
LARGEST = 1 << 16  # bytes of a recipe; PyYAML takes a second for a few hundred thousand
LARGEST_WHOLE = 2**63 - 1
MOST_KEYS = 1000  # of a mapping with all that it merges
DEEPEST = 100  # mappings and lists within each other


class NodeError(Exception):
    """A node whose value is not what was expected."""

    def __init__(self, node: Node, text: str) -> None:
        super().__init__(text)
        self.node = node


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's loader; values may not be nested without end, and merged mappings not double again and again."""

    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.composer.ComposerError(None, None, "nested too deeply", self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def flatten_mapping(self, node: MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MOST_KEYS:
            raise yaml.constructor.ConstructorError(None, None, f"more than {MOST_KEYS} merged keys", node.start_mark)


def _content(path: Path) -> bytes:
    """The bytes of a recipe, a regular file of some kilobytes."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise RecipeError([f"{path} cannot be read: it is not a file"])
        if found.st_size > LARGEST:
            raise RecipeError([f"{path} is no recipe: it has {found.st_size} bytes, a recipe at most {LARGEST}"])
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, RecipeError):
            raise
        raise RecipeError([f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"]) from error


class Document:
    """A YAML file whose errors are collected, to be reported together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[tuple[int, str]] = []
        content = _content(path)
        try:
            self._loader = _Loader(content)
            self.root: Node | None = self._loader.get_single_node()
        except yaml.YAMLError as error:
            raise RecipeError([f"{path}:{_line_of(error)}: invalid YAML: {_problem(error)}"]) from error
        except (RecursionError, ValueError) as error:
            raise RecipeError([f"{path} is no recipe: it is nested too deeply, or not text"]) from error

    def report(self, node: Node | None, message: str) -> None:
        """Note an error at the line of a node."""
        self.problems.append((line(node) if node is not None else 1, message))

    def finish(self) -> None:
        """Raise all errors, in the order of their lines."""
        if self.problems:
            raise RecipeError([f"{self.path}:{number}: {message}" for number, message in sorted(self.problems)])

    def fields(self, node: Node | None, known: Mapping[str, Parser], *, what: str) -> Fields:
        """The valid values of a mapping; unknown keys, keys given twice and invalid values are noted as errors."""
        if not isinstance(node, MappingNode):
            self.report(node, f"{what} must be a mapping, such as {next(iter(known))}: …")
            return {}
        self._flatten(node)
        found: Fields = {}
        for key, value in node.value:
            name = str(key.value)
            if name not in known:
                self.report(key, f"unknown key {name!r} in {what}{near(name, known)}")
                continue
            try:
                found[name] = known[name](value), value
            except NodeError as error:
                self.report(error.node, f"{name}: {error}")
        return found

    def _flatten(self, node: MappingNode) -> None:
        """Resolve `<<`; keys given twice are noted first, because a merged key may be overridden."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.value in seen:
                self.report(key, f"{key.value} is given twice")
            seen.add(str(key.value))
        try:
            self._loader.flatten_mapping(node)
        except yaml.YAMLError as error:
            self.report(node, _problem(error))


def line(node: Node) -> int:
    """The line of a node, from 1."""
    return int(node.start_mark.line) + 1


def near(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """The end of a message about an unknown name: the nearest known one, or all."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else f"; choose from {', '.join(known)}"


def lacks(node: Node | None, key: str, known: Mapping[str, object]) -> bool:
    """Whether a mapping has no such key, and none that is a misspelling of it."""
    if not isinstance(node, MappingNode):
        return False
    given = {str(name.value) for name, _ in node.value}
    return key not in given and not get_close_matches(key, given - known.keys(), n=1, cutoff=0.5)


def text(node: Node) -> str:
    if isinstance(node, ScalarNode) and node.tag == f"{YAML}str" and node.value:
        return str(node.value)
    raise NodeError(node, f"expected a string, got {_shown(node)}; put it in quotes if it is one")


def flag(node: Node) -> bool:
    if isinstance(node, ScalarNode) and node.tag == f"{YAML}bool":
        return node.value.lower() in ("true", "yes", "on")
    raise NodeError(node, f"expected true or false, got {_shown(node)}")


def number(node: Node) -> float:
    """A finite number; YAML itself reads 1e-3 as a string."""
    if isinstance(node, ScalarNode) and node.style is None:
        try:
            value = float(node.value)
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            return value
    raise NodeError(node, f"expected a number, got {_shown(node)}")


def whole(least: int) -> Callable[[Node], int]:
    def parse(node: Node) -> int:
        value = number(node)
        if value != int(value) or value < least:
            raise NodeError(node, f"expected a whole number of at least {least}, got {_shown(node)}")
        exact = int(node.value) if node.value.isdecimal() else int(value)  # a float lacks digits of a large number
        if exact > LARGEST_WHOLE:
            raise NodeError(node, f"expected a whole number of at most {LARGEST_WHOLE}, got {_shown(node)}")
        return exact

    return parse


def choice(*known: str) -> Callable[[Node], str]:
    def parse(node: Node) -> str:
        value = text(node)
        if value not in known:
            raise NodeError(node, f"{value!r} is not known{near(value, known)}")
        return value

    return parse


def many(parse: Callable[[Node], T]) -> Callable[[Node], list[T]]:
    """A list of at least one entry."""

    def parse_all(node: Node) -> list[T]:
        if not isinstance(node, SequenceNode) or not node.value:
            raise NodeError(node, f"expected a list, got {_shown(node)}")
        return [parse(item) for item in node.value]

    return parse_all


def entries(node: MappingNode) -> dict[str, tuple[Node, Node]]:
    """Key → the nodes of the key and of its value, for keys that the user chooses."""
    found: dict[str, tuple[Node, Node]] = {}
    for key, value in node.value:
        name = str(key.value)
        if name in found:
            raise NodeError(key, f"{name} is given twice")
        found[name] = key, value
    return found


def file(node: Node) -> Path:
    """An existing file."""
    path = Path(text(node))
    if not os.path.isfile(path):
        raise NodeError(node, f"{path}: there is no such file")
    return path


def _shown(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return repr(node.value) if node.value else "nothing"
    return "a mapping" if isinstance(node, MappingNode) else "a list"


def _line_of(error: yaml.YAMLError) -> int:
    mark = getattr(error, "problem_mark", None)
    return 1 if mark is None else int(mark.line) + 1


def _problem(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return " ".join(str(problem).split())
