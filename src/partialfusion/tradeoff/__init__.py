"""The frontier between one model and the ensemble: every size and mix measured, as a table, a file or a page."""

from .frontier import Frontier
from .measure import frontier
from .point import Likeness, Point, SpacePoint

__all__ = ["Frontier", "Likeness", "Point", "SpacePoint", "frontier"]
