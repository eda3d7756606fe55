"""The rules: operation → what it does to labels."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..errors import TraceError

# In strict mode an error inside a rule ends the trace; set in the environment, it holds in subprocesses too.
STRICT = "PARTIALFUSION_STRICT"

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}


class NoRuleError(Exception):
    """Raised by a rule for a case that it does not cover: the operation then counts as one without a rule."""


class RuleError(TraceError):
    """A rule failed with an error of its own, in strict mode: the rule has a bug."""


def is_strict() -> bool:
    """Whether an error inside a rule ends the trace: PARTIALFUSION_STRICT is set, and not to 0."""
    return os.environ.get(STRICT, "0") not in ("", "0")


def rule(*operations: str) -> Callable[[Rule], Rule]:
    """Register a function for operations, named `aten.linear` or, for ATen, just `linear`.

    The function gets the tracer and the operation's arguments, tensors as Activation, Parameter or Constant, and
    returns the value (or a tuple of values) of the operation. For a case that it does not cover it raises
    `NoRuleError`, and the channels become rigid. Any other exception is a bug in the rule: it is logged as a warning,
    and the channels become rigid too; where PARTIALFUSION_STRICT=1 is set in the environment, it ends the trace as a
    `RuleError`.
    """

    def register(function: Rule) -> Rule:
        for name in operations:
            RULES[name if "." in name else f"aten.{name}"] = function
        return function

    return register
