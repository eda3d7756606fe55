"""Listening to a network while it runs: which weight reads what, in which geometry, and which norm runs when."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from ...core.modules import named_tensors
from .design import Layout, Window

CONVOLUTION = ("x", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = ("x", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "linear": ("x", "weight", "bias"),
    "addmm": ("bias", "x", "weight"),
    "matmul": ("x", "weight"),
    "mm": ("x", "weight"),
    "__matmul__": ("x", "weight"),
    "__rmatmul__": ("weight", "x"),
    **{f"conv{n}d": CONVOLUTION for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": TRANSPOSED for n in (1, 2, 3)},
}
SYNONYMS = {"input": "x", "mat2": "weight", "other": "weight"}
PRODUCTS = {"matmul", "mm", "__matmul__", "__rmatmul__"}
TURNS = {"t", "transpose", "permute", "swapaxes", "__get__"}  # the last is what x.T and x.mT are
NORMS = {"batch_norm", "instance_norm"}


@dataclass(frozen=True)
class Call:
    """One use of a weight or of a norm.

    Attributes:
        kind: what is used.
        name: of the weight, or of the norm's variance.
        use: the how-many-th use of it.
        x: the input.
        layout, window: how a weight is stored, and what it reads; a norm counts as one weight per channel.
        tensors: the names of all tensors of the model that take part.
        bias: the name of the bias, if any.
    """

    kind: Literal["weight", "norm"]
    name: str
    use: int
    x: Tensor
    layout: Layout
    window: Window
    tensors: tuple[str, ...]
    bias: str | None = None


class Listener(TorchFunctionMode):
    """Tells its subclass of every call of a weight or a norm, before and after. Listens to one run after another."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.tensors = named_tensors(model)
        self.names = {id(t): name for name, t in self.tensors.items()}
        self.norms = norm_modules(model)
        self.start()

    def start(self) -> None:
        """Get ready for another run."""
        self.turned: dict[int, tuple[str, Tensor]] = {}
        self.uses: Counter[str] = Counter()

    def before(self, call: Call) -> None:
        """A weight or norm is about to be used."""

    def after(self, call: Call, result: Tensor) -> None:
        """A weight or norm has been used."""

    def other(self, function: str, names: Sequence[str], values: Any) -> None:
        """Something else was computed, from these values, among them these tensors of the model."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return _opened(func)(*args, **kwargs)
        function = getattr(func, "__name__", "")
        call = self._norm(args, kwargs) if function in NORMS else self._weight(function, args, kwargs)
        if call is not None:
            self.uses[call.name] += 1
            self.before(call)
        result = func(*args, **kwargs)
        if call is not None:
            self.after(call, result)
        elif isinstance(result, (Tensor, tuple, list)):
            names = self._names(args, kwargs)
            if function in TURNS and isinstance(result, Tensor) and result.dim() == 2 and len(names) == 1:
                self.turned[id(result)] = names[0], result
            else:
                self.other(function, names, (args, kwargs))
        return result

    def name(self, value: Any) -> str | None:
        """The name of a parameter or buffer, its axes in whatever order."""
        if not isinstance(value, Tensor):
            return None
        return self.turned[id(value)][0] if id(value) in self.turned else self.names.get(id(value))

    def _names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        return [name for value in (*args, *kwargs.values()) if (name := self.name(value)) is not None]

    def _weight(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if function not in ARGUMENTS or (function == "addmm" and kwargs):
            return None
        given = dict(zip(ARGUMENTS[function], args, strict=False)) | {SYNONYMS.get(k, k): v for k, v in kwargs.items()}
        weight, x, bias = given.get("weight"), given.get("x"), given.get("bias")
        left = function in PRODUCTS and self.name(x) is not None
        if left:
            weight, x = x, weight
        name, bias_name = self.name(weight), self.name(bias)
        if name is None or not isinstance(weight, nn.Parameter | Tensor) or not isinstance(x, Tensor):
            return None
        if not isinstance(self.tensors[name], nn.Parameter) or weight.dim() < 2 or self.name(x) is not None:
            return None
        if bias is not None and (bias_name is None or bias.dim() != 1):
            return None
        if function.startswith("conv_transpose") and given.get("groups", 1) != 1:
            return None
        if function.startswith("conv"):
            layout, window = _convolution(function, weight, given)
        elif weight.dim() > 2 or (left and x.dim() < 2):
            return None
        else:
            layout, window = self._product(weight, writes_first=function == "linear" or left, left=left), Window()
        tensors = (name,) if bias_name is None else (name, bias_name)
        return Call("weight", name, self.uses[name], x, layout, window, tensors, bias_name)

    def _product(self, weight: Tensor, *, writes_first: bool, left: bool) -> Layout:
        stored = self.tensors[str(self.name(weight))]
        turned = (weight.shape, weight.stride()) != (stored.shape, stored.stride())
        return Layout(int(writes_first == turned), -2 if left else -1)

    def _norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A norm that runs on its stored statistics."""
        x = args[0] if args else kwargs.get("input")
        names = self._names(args, kwargs)
        norm = next((n for n in names if n in self.norms), None)
        measures = kwargs.get("training", kwargs.get("use_input_stats", args[5] if len(args) > 5 else False))
        eps = kwargs.get("eps", args[7] if len(args) > 7 else 1e-5)
        if norm is None or measures or eps != self.norms[norm].eps or not isinstance(x, Tensor):
            return None
        return Call("norm", norm, self.uses[norm], x, Layout(0, 1 - x.dim(), x.shape[1]), Window(), tuple(names))


def _convolution(function: str, weight: Tensor, given: dict[str, Any]) -> tuple[Layout, Window]:
    kernel, dim, groups = weight.shape[2:], 1 - weight.dim(), given.get("groups", 1)
    stride, padding, dilation = (given.get(k, v) for k, v in (("stride", 1), ("padding", 0), ("dilation", 1)))
    if not function.startswith("conv_transpose"):
        return Layout(0, dim, groups), Window.convolution(kernel, stride, padding, dilation)
    extra = given.get("output_padding", 0)
    return Layout(1, dim, groups, flipped=True), Window.transposed(kernel, stride, padding, extra, dilation)


def norm_modules(model: nn.Module) -> dict[str, _NormBase]:
    """Name of the variance → the norm that holds it."""
    names = {id(t): name for name, t in named_tensors(model).items()}
    found = [m for m in model.modules() if isinstance(m, _NormBase)]
    return {names[id(m.running_var)]: m for m in found if m.running_var is not None}


@cache
def _opened(function: types.FunctionType) -> types.FunctionType:
    """A function of PyTorch that goes through its own steps even while someone listens, so that they are heard."""
    asks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    scope = dict(function.__globals__) | dict.fromkeys(asks, lambda *tensors: False)
    twin = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin
