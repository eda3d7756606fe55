"""Which layers of a model are held as blocks, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..core.text import table


@dataclass(frozen=True)
class Verdict:
    """What became of one linear or convolution layer.

    Attributes:
        blocks: whether it is held as blocks.
        reason: why, or why not.
        dense: entries of the dense weight.
        kept: entries of its non-zero blocks, where it has some to leave out.
        dense_seconds, block_seconds: of a pass over the example inputs, where both forms were timed.
    """

    blocks: bool
    reason: str
    dense: int
    kept: int | None = None
    dense_seconds: float | None = None
    block_seconds: float | None = None


@dataclass(frozen=True, repr=False)
class Report(Mapping[str, Verdict]):
    """Path of a layer → what became of it, for all linear and convolution layers of a model. Prints as a table."""

    verdicts: Mapping[str, Verdict]

    def __getitem__(self, layer: str) -> Verdict:
        return self.verdicts[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        header = ("layer", "form", "entries", "dense entries", "dense", "blocks", "why")
        rows = [
            (
                layer,
                "blocks" if c.blocks else "dense",
                f"{c.kept if c.blocks else c.dense:,}",
                f"{c.dense:,}",
                _time(c.dense_seconds),
                _time(c.block_seconds),
                c.reason,
            )
            for layer, c in self.items()
        ]
        return table(header, rows, align="<<>>>><")


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3f} ms"
