"""Inputs and results: how a model is called, and which tensors of what it returns count."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import DataError, OptionError, TraceError
from .modules import as_exported, at_rest, named_tensors, without_cache
from .scalars import is_whole

Output = str | int  # the entry of an output that is the result: its name or its position
LABELS = ("labels", "label")  # where a mapping has its labels
PLAIN = (dict, OrderedDict, defaultdict, UserDict)  # mappings whose entries all count


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a model is called with, and which part of its output is the result.

    Attributes:
        args: positional inputs.
        kwargs: keyword inputs, by name.
        output: the entry of the output that is the result; None finds it, see `results`.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    output: Output | None = None

    @classmethod
    def of(cls, example_inputs: Any, output: Output | None = None) -> Inputs:
        """The inputs that a user means: a tensor, a tuple or list of positional inputs, a mapping of keyword inputs."""
        output = _checked(output)
        if isinstance(example_inputs, Inputs):
            return example_inputs if output is None else dataclasses.replace(example_inputs, output=output)
        if isinstance(example_inputs, Mapping):
            found = cls((), _named(example_inputs), output)
        else:
            args = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
            found = cls(args, {}, output)
        if found.defect:
            raise OptionError(f"example_inputs: {found.defect}; pass inputs like those that the models were trained on")
        return found

    @property
    def defect(self) -> str:
        """Why the inputs do not show what a model computes: they are sparse or nested, are empty, or hold NaN or plus
        infinity. Empty if they do. Minus infinity is what masks are made of."""
        for name, value in [*((f"input {k}", v) for k, v in enumerate(self.args)), *self.kwargs.items()]:
            for tensor in _tensors(value):
                if tensor.layout != torch.strided or tensor.is_nested:
                    return f"{name} is no dense tensor"
                where = f"{name} of shape {tuple(tensor.shape)}"
                if tensor.numel() == 0:
                    return f"{where} holds no samples"
                if tensor.is_meta or not tensor.is_floating_point():
                    continue
                wrong = int((tensor.isnan() | tensor.isposinf()).sum())
                if wrong:
                    return f"{where} holds {wrong} NaN or infinite value{'s' * (wrong > 1)}"
        return ""

    @property
    def signature(self) -> Signature:
        """How the model is called, without the inputs themselves."""
        return Signature(len(self.args), tuple(self.kwargs), self.output)

    @property
    def values(self) -> list[Any]:
        """All inputs, in order."""
        return [*self.args, *self.kwargs.values()]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the inputs, nested ones too, in order."""
        return _tensors(self.values)

    @property
    def shapes(self) -> str:
        """What the inputs are, for messages: the shape of a tensor, the type of anything else, with names."""

        def shape(value: Any) -> Any:
            return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__

        if not self.kwargs:
            return str([shape(value) for value in self.args])
        return ", ".join([*(str(shape(v)) for v in self.args), *(f"{k} {shape(v)}" for k, v in self.kwargs.items())])

    def map(self, function: Callable[[Any], Any]) -> Inputs:
        """The inputs with a function applied to all that they hold, tensors or not."""
        args, kwargs = tree_map(function, (self.args, dict(self.kwargs)))
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def on_device_of(self, model: nn.Module) -> Inputs:
        """Copies of the inputs on the device where the model lives."""
        device = next((t.device for t in named_tensors(model).values()), None)

        def copied(value: Any) -> Any:
            return value.detach().clone().to(device or value.device) if isinstance(value, Tensor) else value

        return self.map(copied)

    def call(self, model: nn.Module) -> Any:
        """What the model returns for copies of the inputs, in the mode that it is in; it is not asked for a cache."""
        inputs = self.on_device_of(model)
        with without_cache(model), as_exported(model):
            return model(*inputs.args, **inputs.kwargs)

    def results(self, returned: Any) -> list[Tensor]:
        """The tensors that count of what a model returned; hidden states, caches and losses do not.

        A tensor is the result. Of an output with several entries it is the one that `output` names. Without a name it
        is the entry "logits"; else those whose names start with "logits_per_" or end in "_logits"; else, of a mapping
        with a class of its own, the first entry with tensors that is not a loss; else all tensors.
        """
        entries = _entries(returned)
        found = _tensors(returned if self.output is None else self._chosen(returned, entries))
        if self.output is None and any(isinstance(key, str) for key in entries):
            found = _found(returned, entries)
        if not found:
            where = "its output" if self.output is None else f"output {self.output!r}"
            raise TraceError(f"the model returns a {type(returned).__name__}, and {where} holds no tensor: {CURE}")
        return found

    def _chosen(self, returned: Any, entries: Mapping[Any, Any]) -> Any:
        """The entry that `output` names."""
        values = list(entries.values())
        if isinstance(self.output, int) and -len(values) <= self.output < len(values):
            return values[self.output]
        if self.output in entries:
            return entries[self.output]
        if isinstance(returned, Tensor):
            raise TraceError(f"output={self.output!r}: the model returns a tensor, which has no entries; leave it out")
        names = ", ".join(map(str, entries)) or "none"
        raise TraceError(
            f"output={self.output!r}: the model returns a {type(returned).__name__} without it; its entries are {names}"
        )


@dataclass(frozen=True)
class Signature:
    """How a model is called, without what it is called with: what batches of data must hold.

    Attributes:
        count: how many positional inputs it takes.
        names: the names of its keyword inputs.
        output: the entry of the output that is the result; None finds it.
    """

    count: int = 1
    names: tuple[str, ...] = ()
    output: Output | None = None

    def inputs(self, batch: Any) -> Inputs:
        """The inputs of a batch, which may hold more than these, such as labels.

        With positional inputs a batch is a tensor, or a tuple or list that starts with the inputs; with keyword inputs
        it is a mapping, or a tuple or list that starts with one.
        """
        if self.names:
            return Inputs((), self._named(batch), self.output)
        if isinstance(batch, Tensor) and self.count == 1:
            return Inputs((batch,), {}, self.output)
        if isinstance(batch, (tuple, list)) and len(batch) >= self.count:
            return Inputs(tuple(batch[: self.count]), {}, self.output)
        if isinstance(batch, Mapping):
            raise DataError(
                f"a batch is a {type(batch).__name__} with {', '.join(map(str, batch))}, and example_inputs are "
                "positional: pass example_inputs as a mapping too, with the names that forward takes"
            )
        raise DataError(
            f"a batch is a {type(batch).__name__}; expected a tensor or a tuple that starts with the model's "
            f"{self.count} input(s)"
        )

    def _named(self, batch: Any) -> dict[str, Any]:
        found = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        if not isinstance(found, Mapping):
            raise DataError(
                f"a batch is a {type(batch).__name__} without names, and example_inputs are {', '.join(self.names)}: "
                "pass batches as mappings with these names, or example_inputs as a tensor or a tuple"
            )
        missing = [name for name in self.names if name not in found]
        if missing:
            raise DataError(
                f"a batch has {', '.join(map(str, found))} and lacks {', '.join(missing)}, which example_inputs have: "
                "add it to the batches, or leave it out of example_inputs"
            )
        return {name: found[name] for name in self.names}


CURE = "name the entry that is the result with output=… (on the command line --output)"


def run(model: nn.Module, inputs: Inputs, seed: int = 0) -> list[Tensor]:
    """The model's results in evaluation mode, without gradients; should it draw at random, then from this seed."""
    with at_rest(model, seed=seed):
        return inputs.results(inputs.call(model))


def _checked(output: object) -> Output | None:
    """The option `output`; NumPy's integers are positions too."""
    if output is None or isinstance(output, str):
        return output
    if not is_whole(output):
        raise OptionError(f"output={output!r} must be the name of an entry of the model's output, or its position")
    return int(output)


def _named(inputs: Mapping[Any, Any]) -> dict[str, Any]:
    """Keyword inputs, checked: a tokenizer gives lists unless it is asked for tensors."""
    for name, value in inputs.items():
        if not isinstance(name, str):
            raise OptionError(f"example_inputs has the key {name!r}: a mapping holds the names that forward takes")
        if isinstance(value, list) and value and not any(isinstance(v, Tensor) for v in tree_leaves(value)):
            raise OptionError(f'example_inputs[{name!r}] is a list: pass tensors (tokenizers: return_tensors="pt")')
    if not inputs:
        raise OptionError("example_inputs is an empty mapping: pass the keyword inputs that forward takes")
    return dict(inputs)


def _found(returned: Any, entries: Mapping[Any, Any]) -> list[Tensor]:
    """The results of an output whose entries have names."""
    held = {str(key): tensors for key, value in entries.items() if (tensors := _tensors(value))}
    if "logits" in held:
        return held["logits"]
    several = [held[name] for name in held if name.startswith("logits_per_") or name.endswith("_logits")]
    if several:
        return [tensor for tensors in several for tensor in tensors]
    if isinstance(returned, Mapping) and type(returned) not in PLAIN:
        return next((tensors for name, tensors in held.items() if "loss" not in name.split("_")), [])
    return [tensor for tensors in held.values() for tensor in tensors]


def _entries(returned: Any) -> dict[Any, Any]:
    """Name or position → entry of an output: a mapping, a dataclass, a tuple or list with or without names."""
    if isinstance(returned, Mapping):
        return dict(returned.items())
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        return {f.name: getattr(returned, f.name) for f in dataclasses.fields(returned)}
    if isinstance(returned, (tuple, list)):
        return dict(zip(getattr(returned, "_fields", range(len(returned))), returned, strict=True))
    return {}


def _tensors(value: Any) -> list[Tensor]:
    """All tensors that a value holds, in order."""
    if isinstance(value, Tensor):
        return [value]
    entries = _entries(value)
    leaves = list(entries.values()) if entries else [leaf for leaf in tree_leaves(value) if leaf is not value]
    return [tensor for leaf in leaves for tensor in _tensors(leaf)]
