"""The rules: operation → what it does to labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}


class NoRuleError(Exception):
    """Raised by a rule for a case it does not cover; the operation then counts as unknown, as with any error in it."""


def rule(*operations: str) -> Callable[[Rule], Rule]:
    """Register a function for operations, named `aten.linear` or, for ATen, just `linear`.

    The function gets the tracer and the operation's arguments, tensors as Activation, Parameter or Constant, and
    returns the value (or a tuple of values) of the operation.
    """

    def register(function: Rule) -> Rule:
        for name in operations:
            RULES[name if "." in name else f"aten.{name}"] = function
        return function

    return register
