"""Rotation: where a network allows it, channels are orthonormal directions of one's choice."""

from .find import Rotatable, rotatable
from .turn import turn

__all__ = ["Rotatable", "rotatable", "turn"]
