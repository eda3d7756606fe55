"""Example inputs: those that the user passes, or the first samples of the data."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..errors import DataError, OptionError
from .batches import Batches, first_of, readable
from .inputs import LABELS, Inputs, Output

SAMPLES = 2  # of the first batch: how data is split into batches makes no difference


def inputs_and_batches(
    example_inputs: Any, data: Iterable[Any] | None, model: nn.Module, output: Output | None
) -> tuple[Inputs, Batches | None]:
    """What a model is called with, and the data. Without example inputs, the first samples of the data serve.

    Args:
        example_inputs: a user's option, or None.
        data: a user's option, or None.
        model: the model, whose `forward` says which entries of a batch are inputs.
        output: which entry of the model's output is the result.
    """
    if example_inputs is None:
        if data is None:
            raise OptionError(
                "there are no inputs to run the model on: pass example_inputs, or data=…, whose first samples then "
                "serve"
            )
        data = readable(data)
        example_inputs = first_samples(first_of(data), model)
    inputs = Inputs.of(example_inputs, output)
    return inputs, Batches.of(data, inputs.signature)


def first_samples(batch: Any, model: nn.Module) -> Inputs:
    """The first samples of a batch, without its labels, as inputs of a model.

    A tensor is the one input. Of a mapping, or a tuple that starts with one, the entries count that `forward` takes and
    that are not called labels; of any other tuple or list the first ones, as many as `forward` takes.
    """
    found = batch[0] if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], Mapping) else batch
    if isinstance(found, Mapping):
        inputs = Inputs((), _named(found, model))
    elif isinstance(found, Tensor):
        inputs = Inputs((found,))
    elif isinstance(found, (tuple, list)):
        inputs = Inputs(tuple(found[: _count(len(found), model)]))
    else:
        raise DataError(f"a batch is a {type(batch).__name__}, which shows no inputs of the model: pass example_inputs")
    if not inputs.tensors:
        raise DataError("the first batch of the data holds no tensor that the model takes: pass example_inputs")
    if inputs.defect:
        raise DataError(f"batch 0: {inputs.defect}; leave such batches out")
    rows = next((len(t) for t in inputs.tensors if t.dim()), None)

    def cut(value: Any) -> Any:
        return value[:SAMPLES] if isinstance(value, Tensor) and value.dim() and len(value) == rows else value

    args, kwargs = tree_map(cut, (inputs.args, dict(inputs.kwargs)))
    return Inputs(args, kwargs)


def _parameters(model: nn.Module) -> list[inspect.Parameter]:
    """What `forward` takes; anything at all where Python cannot tell."""
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]


def _named(batch: Mapping[Any, Any], model: nn.Module) -> dict[str, Any]:
    parameters = _parameters(model)
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    known = {p.name for p in parameters}
    return {
        str(name): value
        for name, value in batch.items()
        if name not in LABELS and (name in known or (anything and isinstance(value, Tensor)))
    }


def _count(entries: int, model: nn.Module) -> int:
    """How many of the first entries of a batch are inputs, where `forward` leaves no doubt."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = _parameters(model)
    positional = [p for p in parameters if p.kind in kinds]
    fewest = max(1, sum(p.default is inspect.Parameter.empty for p in positional))
    unlimited = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    most = entries if unlimited else min(len(positional), entries)
    if fewest != most:
        takes = f"{fewest} or more" if unlimited else f"{fewest} to {len(positional)}"
        takes = f"{fewest}" if fewest >= len(positional) and not unlimited else takes
        raise DataError(
            f"a batch holds {entries} and {type(model).__name__}.forward takes {takes}, so which of a batch are inputs "
            "is not clear: pass example_inputs"
        )
    return most
