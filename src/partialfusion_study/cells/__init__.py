"""What experiments measure: each kind of cell is a frozen configuration and the pure function of it."""

from .clocks import Clock
from .clusters import Clusters
from .compress import Compress
from .counts import Counts
from .finetune import FineTune
from .merge import Merge, Parents
from .mixed import Mixed
from .similarity import Similarity
from .spend import Spend
from .train import Train

__all__ = [
    "Clock",
    "Clusters",
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
