"""Observing a model while it runs: what every layer reads and writes.

One observer serves all who need to know: features (what channels respond to), refit (what layers read and should
compute), norm statistics. It sees calls of PyTorch's functions, so it does not matter whether a weight is used by a
module or by a function, once or several times, or inside `nn.MultiheadAttention`.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from .batches import feed
from .inputs import Inputs
from .modules import named_tensors

CONVOLUTION = ("x", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = ("x", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
# Operation → what its positional arguments are; with SYNONYMS, what its keywords are.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "linear": ("x", "weight", "bias"),
    "addmm": ("bias", "x", "weight"),
    "matmul": ("x", "weight"),
    "mm": ("x", "weight"),
    "bmm": ("x", "weight"),
    "__matmul__": ("x", "weight"),
    "__rmatmul__": ("weight", "x"),
    "embedding": ("x", "weight"),
    **{f"conv{n}d": CONVOLUTION for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": TRANSPOSED for n in (1, 2, 3)},
}
SYNONYMS = {"input": "x", "mat1": "x", "mat2": "weight", "other": "weight"}
PRODUCTS = {"matmul", "mm", "bmm", "__matmul__", "__rmatmul__"}
TRANSPOSES = {"t", "transpose", "permute", "swapaxes", "__get__"}  # the last is what x.T and x.mT are
SLICES = {"chunk", "split", "tensor_split", "narrow", "__getitem__", "unbind"}
# Functions that normalise by stored statistics → what their positional arguments are.
FUNCTIONAL_NORM = ("x", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
TORCH_NORM = ("x", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn_enabled")
NORMS: dict[Callable[..., Any], tuple[str, ...]] = {
    F.batch_norm: FUNCTIONAL_NORM,
    F.instance_norm: FUNCTIONAL_NORM,
    torch.batch_norm: TORCH_NORM,
    torch.instance_norm: TORCH_NORM,
}


@dataclass(frozen=True)
class LayerCall:
    """One use of a weight, or of a norm that runs on stored statistics.

    Attributes:
        kind: whether a weight or a norm is used.
        operation: the name of PyTorch's function.
        name: the name of the weight, or of the norm's variance.
        use: how many times it was used before in this run.
        x: what the layer reads.
        weight: the weight as the operation gets it, its axes in whatever order; for a norm its variance.
        left: whether a matrix product has the weight on its left.
        rows: the positions (start, stop) on axis 0 of the stored weight that take part; None for all of them.
        arguments: the other arguments of the operation, by name.
        tensors: the names of all tensors of the model that take part.
    """

    kind: Literal["weight", "norm"]
    operation: str
    name: str
    use: int
    x: Tensor
    weight: Tensor
    left: bool
    rows: tuple[int, int] | None
    arguments: Mapping[str, Any]
    tensors: tuple[str, ...]


class Stop(BaseException):
    """Raised by an observer that has seen enough: the rest of the model need not run."""


class Observer(TorchFunctionMode):
    """Reports every use of a weight or norm to its subclass, before and after. Observes one run after another."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.tensors = named_tensors(model)
        self.norms = norm_modules(model)
        self._names = {id(t): name for name, t in self.tensors.items()}
        self.start()

    def start(self) -> None:
        """Get ready for another run."""
        self._views: dict[int, tuple[str, Tensor]] = {}  # transposed and sliced weights, kept so that ids stay theirs
        self._uses: Counter[str] = Counter()

    def run(self, batch: Inputs, number: int) -> Any:
        """Run the model on a batch while it is observed; returns its output, None where the observer stopped it."""
        self.start()
        try:
            with self:
                return feed(self.model, batch, number)
        except Stop:
            return None

    def before(self, call: LayerCall) -> None:
        """A weight or norm is about to be used."""

    def compute(self, call: LayerCall, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of a weight or norm; a subclass may compute it otherwise."""
        return function(*args, **kwargs)

    def after(self, call: LayerCall, result: Tensor) -> None:
        """A weight or norm has been used."""

    def other(self, operation: str, names: Sequence[str], values: Any) -> None:
        """Something else was computed from these values, among them the tensors of the model with these names."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return _step_by_step(func)(*args, **kwargs)
        operation = getattr(func, "__name__", "")
        call = self._norm(func, args, kwargs) if func in NORMS else self._layer(operation, args, kwargs)
        if call is not None:
            self._uses[call.name] += 1
            self.before(call)
        result = func(*args, **kwargs) if call is None else self.compute(call, func, args, kwargs)
        if call is not None:
            self.after(call, result)
        elif isinstance(result, (Tensor, tuple, list)) and not isinstance(result, torch.Size):
            names = [name for value in (*args, *kwargs.values()) if (name := self._name(value)) is not None]
            if not self._is_view(operation, names, result):
                self.other(operation, names, (args, kwargs))
        return result

    def _name(self, value: Any) -> str | None:
        """The name of a parameter or buffer, whole or sliced, its axes in whatever order."""
        if not isinstance(value, Tensor):
            return None
        return self._views[id(value)][0] if id(value) in self._views else self._names.get(id(value))

    def _is_view(self, operation: str, names: Sequence[str], result: Any) -> bool:
        """Remember transposed and sliced weights; a slice also counts as another use of the whole weight."""
        if len(names) != 1:
            return False
        if operation in TRANSPOSES and isinstance(result, Tensor) and result.dim() >= 2:
            self._views[id(result)] = names[0], result
            return True
        if operation in SLICES:
            for part in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(part, Tensor) and _rows(part, self.tensors[names[0]]) is not None:
                    self._views[id(part)] = names[0], part
        return False

    def _layer(self, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LayerCall | None:
        if operation not in ARGUMENTS:
            return None
        synonyms = {**SYNONYMS, "input": "bias"} if operation == "addmm" else SYNONYMS
        given = dict(zip(ARGUMENTS[operation], args, strict=False)) | {synonyms.get(k, k): v for k, v in kwargs.items()}
        weight, x = given.pop("weight", None), given.pop("x", None)
        left = operation in PRODUCTS and self._name(x) is not None
        if left:
            weight, x = x, weight
        name = self._name(weight)
        if name is None or not isinstance(x, Tensor) or self._name(x) is not None or weight.dim() < 2:
            return None
        stored = self.tensors[name]
        rows = None if weight.numel() == stored.numel() else _rows(weight, stored)
        bias = self._name(given.get("bias"))
        tensors = (name,) if bias is None else (name, bias)
        return LayerCall("weight", operation, name, self._uses[name], x, weight, left, rows, given, tensors)

    def _norm(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> LayerCall | None:
        """A norm that runs on stored statistics of the model."""
        synonyms = {"input": "x", "use_input_stats": "training"}
        given = dict(zip(NORMS[func], args, strict=False)) | {synonyms.get(k, k): v for k, v in kwargs.items()}
        x, name, operation = given.pop("x", None), self._name(given.get("running_var")), func.__name__
        if name is None or given.get("training", operation == "instance_norm") or not isinstance(x, Tensor):
            return None
        tensors = tuple(n for value in given.values() if (n := self._name(value)) is not None)
        return LayerCall("norm", operation, name, self._uses[name], x, self.tensors[name], False, None, given, tensors)

    def bias(self, call: LayerCall) -> str | None:
        """The name of the bias that a call adds; None where there is none, or none of the model's own."""
        return self._name(call.arguments.get("bias"))

    def is_transposed(self, call: LayerCall) -> bool:
        """Whether the operation gets the axes of the weight in another order than they are stored in."""
        stored = self.tensors[call.name]
        return (call.weight.shape, call.weight.stride()) != (stored.shape, stored.stride())

    def read_axis(self, call: LayerCall) -> int:
        """The axis of the stored weight over which a call sums, or in which it looks up."""
        if call.operation == "embedding" or "conv" in call.operation:
            return 0 if call.operation.startswith(("embedding", "conv_transpose")) else 1
        last = call.operation == "linear" or call.left
        return call.weight.dim() - 2 + int(last != (call.rows is None and self.is_transposed(call)))


def _rows(part: Tensor, stored: Tensor) -> tuple[int, int] | None:
    """Where a slice along axis 0 sits in the stored tensor; None for anything that is not such a slice."""
    if part.shape[1:] != stored.shape[1:] or part.stride() != stored.stride() or not stored.numel():
        return None
    offset = int(part.storage_offset()) - int(stored.storage_offset())
    start, between = divmod(offset, stored.stride(0))
    same = part.untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()
    return (start, start + part.shape[0]) if same and not between and part.dim() == stored.dim() else None


def norm_modules(model: nn.Module) -> dict[str, _NormBase]:
    """Name of the variance → the norm module that holds it."""
    names = {id(t): name for name, t in named_tensors(model).items()}
    found = [m for m in model.modules() if isinstance(m, _NormBase)]
    return {names[id(m.running_var)]: m for m in found if m.running_var is not None}


@cache
def _step_by_step(function: types.FunctionType) -> types.FunctionType:
    """A function of PyTorch that calls its own steps while it is observed, instead of asking the observer for all."""
    asks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    scope = dict(function.__globals__) | dict.fromkeys(asks, lambda *tensors: False)
    twin = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin
