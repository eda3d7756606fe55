"""The ensemble as one module: every model runs, their outputs are mixed."""

from __future__ import annotations

from collections.abc import Sequence
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

        def mixed(*parts: Any) -> Any:
            if not isinstance(parts[-1], Tensor) or not parts[-1].is_floating_point():
                return parts[-1]
            return sum(share * part for (share, _), part in zip(active, parts, strict=True))

        return tree_map(mixed, *outputs)
