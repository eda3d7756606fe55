"""A converted model as a whole, timed beside the models that it replaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from ..core.inputs import Inputs
from ..fusing.budget import ROUNDS, OneByOne, Stopwatch, faster_layout


@dataclass(frozen=True)
class WholeTimes:
    """The time of one call, relative to that of a reference.

    Attributes:
        reference: what 1 is, in words: the last source, or the dense module where the sources are not known.
        forms: form of the fused model → its time.
        ensemble: that of the sources one by one, where there are several.
    """

    reference: str
    forms: Mapping[str, float]
    ensemble: float | None = None


def whole_times(forms: Mapping[str, nn.Module], sources: Sequence[nn.Module], inputs: Inputs) -> WholeTimes:
    """Time the forms of a fused model and its sources in turns; the sources are in the layout in which they are faster.

    Args:
        forms: name → model; one of them is "dense".
        sources: the models that it was made of, where they are known.
        inputs: what they are called with.
    """
    if not sources:
        others = {name: model for name, model in forms.items() if name != "dense"}
        stopwatch = Stopwatch(forms["dense"], inputs, fewest=ROUNDS)
        return WholeTimes("the dense module", {"dense": 1.0, **stopwatch.ratios(others)})
    in_layout = faster_layout(sources[-1], inputs)
    laid_out = [in_layout(model) for model in sources]
    together = {"one by one": OneByOne(laid_out)} if len(sources) > 1 else {}
    found = Stopwatch(laid_out[-1], inputs, fewest=ROUNDS).ratios({**forms, **together})
    return WholeTimes("the last model", {form: found[form] for form in forms}, found.get("one by one"))
