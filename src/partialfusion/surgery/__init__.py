"""Surgery: blueprint + plan + models → a new model. The sources stay bit for bit as they were."""

from .apply import AppliedPlan, ResizeError, SurgeryResult, apply, matching_spaces
from .count import Count, count
from .norm import analytic, recalibrate
from .refit import RIDGE, refit_model
from .statistics import set_statistics
from .verify import verify

__all__ = [
    "RIDGE",
    "AppliedPlan",
    "Count",
    "ResizeError",
    "SurgeryResult",
    "analytic",
    "apply",
    "count",
    "matching_spaces",
    "recalibrate",
    "refit_model",
    "set_statistics",
    "verify",
]
