"""Rotation: where a network allows it, channels are orthonormal directions of one's choice."""

from .find import Rotatable, rotatable
from .rotary import Pairing
from .turn import Rotations, head_channels, turn

__all__ = ["Pairing", "Rotatable", "Rotations", "head_channels", "rotatable", "turn"]
