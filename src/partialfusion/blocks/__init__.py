"""The block form of a fused model: layers without zero blocks, their speed, and training that keeps the zeros."""

from .candidates import Report, Verdict
from .convert import block_report, dense_state, from_blocks, to_blocks
from .layer import BlockLayer
from .layers import BlockConv1d, BlockConv2d, BlockConv3d, BlockLinear

__all__ = [
    "BlockConv1d",
    "BlockConv2d",
    "BlockConv3d",
    "BlockLayer",
    "BlockLinear",
    "Report",
    "Verdict",
    "block_report",
    "dense_state",
    "from_blocks",
    "to_blocks",
]
