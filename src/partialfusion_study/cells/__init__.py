"""What experiments compute: each kind of cell is a frozen configuration and a pure function of it."""

from .clocks import Clock
from .finetune import FineTune
from .memory import Memory
from .norms import Variances
from .pairs import Compared, Counts, Merge, Mixed, Parents, Spend
from .shrunk import Shrunk, ShrunkEnsemble
from .similarity import Similarity
from .single import Clusters, Compress, Sliced, Train
from .soft import SoftMerge
from .stored import Stored
from .texts import TextArithmetic, TextMerge, TextParents, TrainText

__all__ = [
    "Clock",
    "Clusters",
    "Compared",
    "Compress",
    "Counts",
    "FineTune",
    "Memory",
    "Merge",
    "Mixed",
    "Parents",
    "Shrunk",
    "ShrunkEnsemble",
    "Similarity",
    "Sliced",
    "SoftMerge",
    "Spend",
    "Stored",
    "TextArithmetic",
    "TextMerge",
    "TextParents",
    "Train",
    "TrainText",
    "Variances",
]
