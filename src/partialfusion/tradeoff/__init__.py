"""The frontier between one model and the ensemble: every size and mix measured, as a table, a file or a page."""

from .measure import frontier
from .point import Point, Similarity, SpacePoint
from .result import Frontier

__all__ = ["Frontier", "Point", "Similarity", "SpacePoint", "frontier"]
