"""The frontier between one model and the ensemble: every size and mix measured, as a table, a file or a page."""

from .measure import frontier
from .point import Likeness, Point, SpacePoint
from .result import Frontier

__all__ = ["Frontier", "Likeness", "Point", "SpacePoint", "frontier"]
