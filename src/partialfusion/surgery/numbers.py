"""Whole numbers that modules keep and that repeat a size, such as `num_heads`: which of them follow a resized model."""

from __future__ import annotations

import logging
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice

import torch
from torch import nn

from ..blueprint import Blueprint
from ..blueprint.spaces import Repeats
from ..kernels import Plan

# Class and attribute → what it repeats. All modules of a class are treated alike.
Follows = Mapping[tuple[str, str], Repeats]
# Module path → attribute → value; an entry of a tuple is an attribute of its own, such as `bias_shape[2]`.
Numbers = dict[str, dict[str, int]]

KINDS: tuple[Repeats, ...] = ("heads", "inner", "width", "written", "read")
# What → old number → new numbers.
Changes = dict[Repeats, dict[int, set[int]]]

MOST_TOGETHER = 4  # numbers of one class that are tried together
TRIALS = 200  # sets of numbers that are tried for one class

log = logging.getLogger(__name__)


class Candidates:
    """The numbers of a model's own modules that equal a size which a plan changes.

    PyTorch's modules are left out: what they repeat is known.

    Args:
        model: the model before it is resized.
        blueprint: its blueprint.
        plan: the new widths.
        shapes: name → shape of every tensor in the resized model.
    """

    def __init__(
        self, model: nn.Module, blueprint: Blueprint, plan: Plan, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.values: dict[tuple[str, str], dict[Repeats, Numbers]] = {}
        changes = _changes(blueprint, plan, shapes)
        for path, module in model.named_modules():
            if type(module).__module__.startswith("torch.nn"):
                continue
            numbers = {name: value for name, value in numbers_of(module).items() if value > 0}
            if not numbers:
                continue
            for name, value in numbers.items():
                for kind, new in _what_repeats(path, value, changes).items():
                    known = self.values.setdefault((type(module).__qualname__, name), {})
                    known.setdefault(kind, {}).setdefault(path, {})[name] = new

    def numbers(self, follows: Follows) -> Numbers:
        """What the modules keep when the numbers named follow."""
        found: Numbers = {}
        for key, kind in follows.items():
            for path, values in self.values.get(key, {}).get(kind, {}).items():
                found.setdefault(path, {}).update(values)
        return found

    def search(self, model: nn.Module, run: Callable[[nn.Module], object]) -> dict[tuple[str, str], Repeats] | None:
        """The numbers that must follow for a resized model to run, and no others; None where none are found.

        Where the model fails, numbers of the class at work are tried, the fewest first, then those of the classes
        around it, and kept if the model then comes further.

        Args:
            model: the resized model; its numbers are changed for the time of the search.
            run: runs the model on the example inputs.
        """
        found: dict[tuple[str, str], Repeats] = {}
        reached = self._attempt(model, run, found)
        while reached.at:
            for name in dict.fromkeys(reversed(reached.at)):
                further = self._further(model, run, found, name, reached)
                if further is not None:
                    found, reached = further
                    break
            else:
                return None
        return found

    def heads(self, model: nn.Module, run: Callable[[nn.Module], object], follows: Follows) -> Iterator[Follows]:
        """More and more of the numbers that repeat how many heads there are, as far as the model runs with them: a -1
        in the code may hide that they should follow. Those of the innermost modules come first, the likeliest ones."""
        found = dict(follows)
        keys = [key for key, kinds in self.values.items() if key not in found and "heads" in kinds]
        depths = {key: max(path.count(".") + bool(path) for path in self.values[key]["heads"]) for key in keys}
        for depth in sorted(set(depths.values()), reverse=True):
            before = len(found)
            for key in keys:
                if depths[key] == depth and not self._attempt(model, run, {**found, key: "heads"}).at:
                    found[key] = "heads"
            if len(found) > before:
                yield dict(found)

    def _further(
        self,
        model: nn.Module,
        run: Callable[[nn.Module], object],
        follows: Follows,
        name: str,
        reached: _Reached,
    ) -> tuple[dict[tuple[str, str], Repeats], _Reached] | None:
        """The fewest numbers of a class, or of what it holds, that let the model come further than it did."""
        near = {name, *_classes_within(model, name)}
        options = [(key, kind) for key in self.values if key[0] in near for kind in self._kinds(key)]
        tried = set()
        for likely in (True, False):
            some = [option for option in options if option[0] in reached.named or not likely]
            chosen = [
                c for n in range(1, min(len(some), MOST_TOGETHER) + 1) for c in islice(combinations(some, n), TRIALS)
            ]
            for numbers in chosen[:TRIALS]:
                if len(dict(numbers)) < len(numbers) or numbers in tried:
                    continue
                tried.add(numbers)
                more = {**follows, **dict(numbers)}
                now = self._attempt(model, run, more)
                if not now.at or now.calls > reached.calls:
                    return more, now
        return None

    def _kinds(self, key: tuple[str, str]) -> list[Repeats]:
        """What a number may repeat; what is written or read only where a width may be either and they differ."""
        known = self.values[key]
        either = known.get("width", {}).items()
        return [kind for kind in known if kind not in ("written", "read") or not known[kind].items() <= either]

    def _attempt(self, model: nn.Module, run: Callable[[nn.Module], object], follows: Follows) -> _Reached:
        """How far the model comes with these numbers; they are put back afterwards."""
        modules = dict(model.named_modules())
        wanted = self.numbers(follows)
        before = {path: {n: numbers_of(modules[path])[n] for n in values} for path, values in wanted.items()}
        try:
            _set_all(modules, wanted)
            return _reached(model, run)
        finally:
            _set_all(modules, before)


@dataclass(frozen=True)
class _Reached:
    """How far a model came.

    Attributes:
        calls: how often the call of a module began or ended.
        at: the classes that were at work when it failed, the innermost last; none where it did not.
        named: class and attribute of what the code at work names, the likeliest to be wrong.
    """

    calls: int
    at: tuple[str, ...] = ()
    named: frozenset[tuple[str, str]] = frozenset()


def _reached(model: nn.Module, run: Callable[[nn.Module], object]) -> _Reached:
    calls, open_calls = [0], list[str]()

    def begin(module: nn.Module, args: object) -> None:
        calls[0] += 1
        open_calls.append(type(module).__qualname__)

    def end(module: nn.Module, args: object, result: object) -> None:
        calls[0] += 1
        open_calls.pop()

    hooks = [h for m in model.modules() for h in (m.register_forward_pre_hook(begin), m.register_forward_hook(end))]
    try:
        run(model)
        return _Reached(calls[0])
    except Exception as error:
        log.debug("in %s: %s", open_calls[-1:], error)
        return _Reached(calls[0], tuple(open_calls) or ("",), _named_by(error))
    finally:
        for hook in hooks:
            hook.remove()


def _named_by(error: Exception) -> frozenset[tuple[str, str]]:
    """Class and attribute of the numbers that the methods name in which an error was raised."""
    found: set[tuple[str, str]] = set()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            names = set(frame.f_code.co_names)
            numbers = (name for name in numbers_of(owner) if name.partition("[")[0] in names)
            found.update((type(owner).__qualname__, name) for name in numbers)
    return frozenset(found)


def _classes_within(model: nn.Module, name: str) -> set[str]:
    """The classes of the modules that modules of a class hold: their methods may be at work, too."""
    holders = [m for m in model.modules() if type(m).__qualname__ == name]
    return {type(child).__qualname__ for m in holders for child in m.children()}


def _set_all(modules: Mapping[str, nn.Module], numbers: Numbers) -> None:
    for path, values in numbers.items():
        for name, value in values.items():
            set_number(modules[path], name, value)


def numbers_of(module: nn.Module) -> dict[str, int]:
    """The whole numbers that a module keeps, those in tuples included."""
    found = {}
    for name, value in vars(module).items():
        if type(value) is int:
            found[name] = value
        elif isinstance(value, (tuple, list)):
            found.update({f"{name}[{k}]": n for k, n in enumerate(value) if type(n) is int})
    return found


def set_number(module: nn.Module, name: str, value: int) -> None:
    """Set a whole number of a module, as `numbers_of` names it."""
    attribute, entry, index = name.partition("[")
    if not entry:
        setattr(module, name, value)
        return
    held = getattr(module, attribute)
    values = list(held)
    values[int(index.removesuffix("]"))] = value
    setattr(module, attribute, type(held)(values) if type(held) in (tuple, list, torch.Size) else tuple(values))


def _what_repeats(path: str, value: int, changes: Mapping[str, Changes]) -> dict[Repeats, int]:
    """What a number of a module may repeat, and what it becomes: sizes of its own parameters or, where it is none of
    these, of those of the modules around it, the nearest first."""
    while True:
        prefix = f"{path}." if path else ""
        near = [change for name, change in changes.items() if name.startswith(prefix)]
        found: dict[Repeats, int] = {}
        for kind in KINDS:
            new = {n for change in near for n in change[kind].get(value, ())}
            if len(new) == 1 and new != {value}:
                found[kind] = new.pop()
        if found or not path or any(value in change[kind] for change in near for kind in KINDS):
            return found
        path = path.rpartition(".")[0]


def _changes(blueprint: Blueprint, plan: Plan, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Changes]:
    """Parameter → what → old number → new numbers, of its axes and of the spaces on them, as often as any axis has
    these: a module may keep the width of what it puts together from several copies."""
    found: dict[str, Changes] = {}
    multiples = {s.name: {b.index.shape[1] for b in s.bindings} for s in blueprint}
    for name, axes in blueprint.axes.items():
        here: Changes = {kind: defaultdict(set) for kind in KINDS}
        for axis, bound in axes.items():
            widths = [(blueprint.shapes[name][axis], shapes[name][axis])]
            for space, binding in bound:
                copies, width = binding.index.shape[1], plan[space.name].width
                if space.blocks is None:
                    widths += [(space.width * times, width * times) for times in multiples[space.name]]
                    continue
                here["inner"][space.width * copies].add(width * copies)
                heads = width // (space.width // space.heads)
                for times in _divisors(copies):  # the query heads of a key head
                    here["heads"][space.heads * times].add(heads * times)
            role: Repeats = "read" if all(b.role == "reads" for _, b in bound) else "written"
            for old, new in widths:
                here["width"][old].add(new)
                here[role][old].add(new)
        found[name] = here
    return found


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]
