"""Surgery: blueprint + plan + models → a new model. The sources stay bit for bit as they were."""

from .apply import Operated, ResizeError, apply, matching_spaces
from .count import Count, count
from .norm import analytic, recalibrate
from .verify import verify

__all__ = [
    "Count",
    "Operated",
    "ResizeError",
    "analytic",
    "apply",
    "count",
    "matching_spaces",
    "recalibrate",
    "verify",
]
