"""What one does with a fused model: run it, train it, keep it, hand it on."""

from .convert import block_report, dense_state, from_blocks, to_blocks
from .layer import BlockLayer
from .layers import BlockConv1d, BlockConv2d, BlockConv3d, BlockLinear
from .report import Report, Verdict

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
