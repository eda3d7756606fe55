"""Refit without labels: one concept a file, the flow in `refit`."""

from .refit import RIDGE, refit_model

__all__ = ["RIDGE", "refit_model"]
