"""The size of a file: a fused MLP as it is stored, beside one network."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import partialfusion as pf

from ..networks import mlp


@dataclass(frozen=True)
class Stored:
    """The bytes of two files, a single MLP in safetensors format and its fusion with another by `pf.save`.

    Both have random weights: sizes depend on the shapes alone.

    Attributes:
        width: width of the three hidden layers.
        alpha: the isolated fraction of the channels.
    """

    width: int
    alpha: float = 0.5

    def run(self) -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            a, b = (mlp(784, *[self.width] * 3, 10).eval() for _ in range(2))
        options: dict[str, Any] = {"alpha": self.alpha, "features": "weights", "align": "greedy", "round_to": 1}
        fused = pf.fuse([a, b], torch.zeros(2, 784), progress=False, **options)
        with tempfile.TemporaryDirectory() as folder:
            single, stored = (Path(folder) / f"{name}.safetensors" for name in ("single", "fused"))
            save_file(b.state_dict(), single)
            pf.save(fused, stored)
            return {
                "single": single.stat().st_size,
                "fused": stored.stat().st_size,
                "effective": fused.count.effective,
                "dense": fused.count.dense,
                "parameters": sum(p.numel() for p in b.parameters()),
            }
