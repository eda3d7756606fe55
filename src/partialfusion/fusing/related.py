"""Whether models were trained from one base: then channel i of one still is channel i of the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

ALIKE = 0.5  # cosine of all weight matrices together; networks trained from different starts are near 0


def of_one_base(models: Sequence[nn.Module]) -> bool:
    """Whether the weight matrices of every model point where those of the last one do."""
    last = dict(models[-1].named_parameters())
    return all(_cosine(dict(m.named_parameters()), last) > ALIKE for m in models[:-1])


def _cosine(ours: dict[str, nn.Parameter], theirs: dict[str, nn.Parameter]) -> float:
    """Of all weight matrices together; 0 where there are none, or shapes or numbers are missing."""
    sums = torch.zeros(3, dtype=torch.float64)
    for name, b in theirs.items():
        a = ours.get(name)
        if b.dim() < 2 or not b.is_floating_point():
            continue
        if a is None or a.shape != b.shape or a.is_meta or b.is_meta:
            return 0.0
        x, y = a.detach().double().flatten(), b.detach().to(a.device).double().flatten()
        sums += torch.stack([x @ y, x @ x, y @ y]).cpu()
    size = float((sums[1] * sums[2]).sqrt())
    return float(sums[0]) / size if size > 0 else 0.0
