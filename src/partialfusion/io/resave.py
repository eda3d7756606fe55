"""`resave` under its earlier address."""

from .storage import resave

__all__ = ["resave"]
