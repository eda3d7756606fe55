"""What each family of operations does to channel labels; importing this package registers the rules."""

from . import elementwise, linear, movement, norm, pooling

__all__ = ["elementwise", "linear", "movement", "norm", "pooling"]
