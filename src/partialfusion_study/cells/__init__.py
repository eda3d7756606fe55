"""What experiments compute: each kind of cell is a frozen configuration and a pure function of it."""

from .clocks import Clock
from .finetune import FineTune
from .pairs import Compared, Counts, Merge, Mixed, Parents, Spend
from .similarity import Similarity
from .single import Clusters, Compress, Train

__all__ = [
    "Clock",
    "Clusters",
    "Compared",
    "Compress",
    "Counts",
    "FineTune",
    "Merge",
    "Mixed",
    "Parents",
    "Similarity",
    "Spend",
    "Train",
]
