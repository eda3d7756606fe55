"""The ensemble as one module: every model runs, their outputs are mixed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map


class OutputMix(nn.Module):
    """Σ mix_m · model_m(x), for outputs of any structure; non-float leaves come from the last model."""

    def __init__(self, models: Sequence[nn.Module], mix: Sequence[float]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.mix = tuple(mix)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The mixed output; a model with share 0 does not run."""
        active = [(share, model) for share, model in zip(self.mix, self.models, strict=True) if share > 0]
        outputs = [model(*inputs, **options) for _, model in active]

        return _mixed([share for share, _ in active], outputs)


def _mixed(shares: Sequence[float], outputs: Sequence[Any]) -> Any:
    def leaf(*parts: Any) -> Any:
        last = parts[-1]
        if isinstance(last, Tensor) and last.is_floating_point():
            return sum(share * part for share, part in zip(shares, parts, strict=True))
        if isinstance(last, Mapping):  # of a class that PyTorch does not take apart
            return _copied(last, {k: _mixed(shares, [part[k] for part in parts]) for k in last}, items=True)
        if is_dataclass(last) and not isinstance(last, type):
            values = {f.name: _mixed(shares, [getattr(part, f.name) for part in parts]) for f in fields(last)}
            return _copied(last, values, items=False)
        return last

    return tree_map(leaf, *outputs)


def _copied(output: Any, values: Mapping[Any, Any], *, items: bool) -> Any:
    """A copy of an output with other entries."""
    made = copy.copy(output)
    for key, value in values.items():
        if items:
            made[key] = value
        else:
            object.__setattr__(made, key, value)  # a frozen one too
    return made
