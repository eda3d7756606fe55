"""What each family of operations does to channel labels; importing this package registers the rules."""

from . import contraction, elementwise, linear, movement, norm, pooling, recurrent

__all__ = ["contraction", "elementwise", "linear", "movement", "norm", "pooling", "recurrent"]
