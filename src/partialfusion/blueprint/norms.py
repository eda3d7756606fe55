"""Norms across channels, recognised by what a module computes on random numbers, never by its name."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

Shape = tuple[int, ...]

# Inputs have these standard deviations: around the root of eps, whatever it is, the outputs tell it from all others.
SCALES = (1.0, 30.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
USUAL_EPS = (*(10.0**-k for k in range(2, 13)), *(torch.finfo(t).eps for t in (torch.float32, torch.float64)))
LARGEST_EPS = 0.1
MACHINERY = frozenset(vars(nn.Module()))
# Another order of additions changes a result by a few times the rounding of one order.
ROUNDING = 8


@dataclass(frozen=True)
class NormLayer:
    """A module that normalises across channels.

    Attributes:
        path: the module's path in the model.
        centred: it subtracts the mean, as layer norm does; otherwise it is an RMS norm.
        dim: the dimension of the channels in its input, counted from the end.
        positions: its statistics run over all dimensions behind `dim` too, as those of `nn.GroupNorm` with one group.
        eps: what it adds to the variance, or to the mean square.
        weight: the attribute that scales the channels, such as "weight" or "gamma".
        bias: the attribute that is added to them.
        offset: what it adds to the weight before it scales: 0.0, or 1.0.
        then: the modules within it that it applies to the normalised values, such as an activation function.
    """

    path: str
    centred: bool
    dim: int
    positions: bool
    eps: float
    weight: str | None
    bias: str | None
    offset: float
    then: tuple[str, ...] = ()


def find_norms(model: nn.Module, run: Callable[[nn.Module], object]) -> dict[str, NormLayer]:
    """Path → norm, of every module of a model that is a layer norm or an RMS norm across channels.

    A module is recognised if copies of it with random parameters compute such a norm on random inputs of many scales,
    to the precision of its arithmetic. Its parameters are never written, and its values do not matter: models on the
    meta device have norms too.

    Args:
        model: any module; it is left as it was.
        run: runs the model once on its example inputs. A module that this does not call is not recognised.
    """
    seen = _inputs_seen(model, run)
    known: dict[Hashable, NormLayer | None] = {}
    found: dict[str, NormLayer] = {}
    with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path, module in model.named_modules():
            answers = set()
            for shape, dtype in seen.get(module, ()):
                key = _fingerprint(module), shape, dtype
                if key not in known:
                    known[key] = _recognise(module, shape, dtype)
                answers.add(known[key])
            norm = answers.pop() if len(answers) == 1 else None
            if norm is not None and len({shape[norm.dim] for shape, _ in seen[module]}) == 1:
                found[path] = replace(norm, path=path)
    return {path: norm for path, norm in found.items() if not any(p.startswith(f"{path}.") for p in found if path)}


# Which modules are worth a trial, and on what.


def _inputs_seen(
    model: nn.Module, run: Callable[[nn.Module], object]
) -> dict[nn.Module, set[tuple[Shape, torch.dtype]]]:
    """Candidate → shapes and types of its inputs; one that was called otherwise than as y = module(x) is left out."""
    seen: dict[nn.Module, set[tuple[Shape, torch.dtype]]] = {}
    others: set[nn.Module] = set()

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x: Any = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 0 and _is_alike(output, x):
            seen.setdefault(module, set()).add((tuple(x.shape), x.dtype))
        else:
            others.add(module)

    fast = torch.backends.mha.get_fastpath_enabled()
    handles = [m.register_forward_hook(record, with_kwargs=True) for m in model.modules() if _is_candidate(m)]
    try:
        # The fast path of nn.TransformerEncoderLayer would pass the parameters of its norms on and not call them.
        torch.backends.mha.set_fastpath_enabled(False)
        run(model)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()
    return {module: shapes for module, shapes in seen.items() if module not in others}


def _is_alike(y: Any, x: Tensor) -> bool:
    return isinstance(y, Tensor) and y.shape == x.shape and y.dtype == x.dtype and y.device == x.device


def _is_candidate(module: nn.Module) -> bool:
    """At most two parameters, of one size, and no tensor besides."""
    own = [p for p in module._parameters.values() if p is not None]
    if len(own) > 2 or len({p.numel() for p in own}) > 1 or not all(p.is_floating_point() for p in own):
        return False
    if any(True for _ in module.buffers()) or any(True for child in module.children() for _ in child.parameters()):
        return False
    attributes = [v for m in module.modules() for name, v in vars(m).items() if not _is_machinery(name)]
    return not any(isinstance(leaf, Tensor) for leaf in tree_leaves(attributes))


def _fingerprint(module: nn.Module) -> Hashable:
    """Equal for modules that compute the same with the same parameters."""
    parameters = tuple((name, None if p is None else tuple(p.shape)) for name, p in module._parameters.items())
    children = tuple((name, None if m is None else _fingerprint(m)) for name, m in module._modules.items())
    attributes = tuple((name, _key(v)) for name, v in vars(module).items() if not _is_machinery(name))
    return type(module), parameters, children, attributes


def _is_machinery(name: str) -> bool:
    """Whether every module has this attribute."""
    return name in MACHINERY


def _key(value: Any) -> Hashable:
    """Equal for the same number or text, for sequences of these, and otherwise for the same object only."""
    if isinstance(value, (tuple, list)):
        return type(value), tuple(_key(v) for v in value)
    if isinstance(value, (int, float, str, torch.dtype, torch.device)):
        return type(value), value
    return type(value), id(value)


# Trials.


@dataclass(frozen=True)
class _Trial:
    """A copy of a module with random parameters, to be run on random inputs.

    Attributes:
        module: the copy, of the type `dtype`.
        parameters: name → parameter in double precision, flat.
        dtype: the type of the inputs; eps may depend on it.
        generator: where inputs are drawn from.
    """

    module: nn.Module
    parameters: dict[str, Tensor]
    dtype: torch.dtype
    generator: torch.Generator

    def input(self, shape: Shape, scale: float) -> Tensor:
        noise = torch.randn(shape, generator=self.generator, device="cpu", dtype=torch.float64)
        return (scale * (noise + 0.7)).to(self.dtype)

    def output(self, x: Tensor) -> Tensor | None:
        """What the copy computes, in double precision; None if it does not take such inputs. Hooks do not run."""
        try:
            y = self.module.forward(x.clone())
        except Exception:
            return None
        return y.double() if _is_alike(y, x) else None


def _trial(module: nn.Module, dtype: torch.dtype) -> _Trial | None:
    """A copy with parameters between 0.5 and 1.5 of random sign, so that no one and no zero hides what they do."""
    generator = torch.Generator("cpu").manual_seed(0)
    memo: dict[int, Any] = {}
    parameters: dict[str, Tensor] = {}
    for name, p in module._parameters.items():
        if p is not None:
            drawn = torch.rand(p.shape, generator=generator, device="cpu", dtype=torch.float64) + 0.5
            signs = torch.rand(p.shape, generator=generator, device="cpu", dtype=torch.float64) < 0.5
            value = torch.where(signs, -drawn, drawn).to(dtype)
            memo[id(p)] = nn.Parameter(value, requires_grad=False)
            parameters[name] = value.double().flatten()
    for m in module.modules():
        memo |= {id(v): OrderedDict() for name, v in vars(m).items() if "_hooks" in name and isinstance(v, dict)}
    try:
        return _Trial(copy.deepcopy(module, memo).eval(), parameters, dtype, generator)
    except Exception:
        return None


def _recognise(module: nn.Module, shape: Shape, dtype: torch.dtype) -> NormLayer | None:
    """The norm that a module computes on inputs of a shape, without its path."""
    sizes = {p.numel() for p in module._parameters.values() if p is not None}
    dims = [d for d in range(-1, -max(len(shape), 2), -1) if shape[d] > 1 and sizes <= {shape[d]}]
    trial = _trial(module, dtype if dtype == torch.float64 else torch.float32) if dims else None
    if trial is None:
        return None
    norm = _recognise_trial(trial, module, shape, dims)
    if norm is not None or not module._modules:
        return norm
    called: list[str] = []
    bare = _without_children(trial, called)
    norm = _recognise_trial(bare, module, shape, dims)
    then = tuple(dict.fromkeys(called))
    return None if norm is None or not _is_followed_by(trial, bare, then, shape) else replace(norm, then=then)


def _recognise_trial(trial: _Trial, module: nn.Module, shape: Shape, dims: list[int]) -> NormLayer | None:
    eps = [v for v in vars(module).values() if isinstance(v, float) and 0 < v < LARGEST_EPS]
    for dim in dims:
        norm = _across(trial, shape, dim, [*dict.fromkeys((*eps, *USUAL_EPS))])
        if norm is not None:
            return norm
    return None


class _Pass(nn.Module):
    """Stands for a module within a norm: hands on what it gets, and says that it was called."""

    def __init__(self, name: str, called: list[str]) -> None:
        super().__init__()
        self.name, self.called = name, called

    def forward(self, x: Tensor) -> Tensor:
        self.called.append(self.name)
        return x


def _without_children(trial: _Trial, called: list[str]) -> _Trial:
    """A trial of the same module whose own modules do nothing but leave their names in `called`."""
    module = copy.copy(trial.module)
    module._modules = {name: m if m is None else _Pass(name, called) for name, m in module._modules.items()}
    return replace(trial, module=module)


def _is_followed_by(trial: _Trial, bare: _Trial, then: tuple[str, ...], shape: Shape) -> bool:
    """Whether a module computes what its bare norm does, followed by modules of its own."""
    x = trial.input(shape, 1.0)
    expected, found = trial.output(x), bare.output(x)
    if expected is None or found is None:
        return False
    found = found.to(trial.dtype)
    for name in then:
        found = trial.module._modules[name](found)  # type: ignore[misc]
    return _is_alike(found.double(), expected) and _gap(found.double(), expected) <= torch.finfo(torch.float32).eps


def _across(trial: _Trial, shape: Shape, dim: int, eps: list[float]) -> NormLayer | None:
    """The norm across one dimension, on the first shape that the module takes."""
    for other, free in _other_shapes(shape, dim):
        x = trial.input(other, 1.0)
        y = trial.output(x)
        if y is None:
            continue
        # With positions that cannot vary, a norm over several dimensions looks like one over channels and positions,
        # and so does an instance norm without parameters where channels are left beside the batch.
        positions = dim < -1 and free and (bool(trial.parameters) or dim == 1 - len(shape))
        for norm in _hypotheses(trial, dim, positions):
            # Whatever eps is, at this scale it does not change much.
            if _gap(y, _reference(norm, trial, x.double())) < LARGEST_EPS:
                known = _with_eps(norm, trial, other, eps)
                return known if known is not None and _is_across_channels(known, trial, other) else None
        return None
    return None


def _other_shapes(shape: Shape, dim: int) -> Iterator[tuple[Shape, bool]]:
    """Shapes with the same channels and fewer restrictions first, and whether all their positions are new.

    Other numbers of positions tell channels from positions that happen to be as many; some modules do not take them.
    """
    small = [2, *(3 + k for k in range(len(shape) - 1))]
    channels = len(shape) + dim
    new = tuple(n if k == channels else small[k] for k, n in enumerate(shape))
    ones = tuple(1 if n == 1 and k != channels else new[k] for k, n in enumerate(shape))
    yield new, True
    tried = [new]
    for other in (ones, (new[0], *shape[1:]), shape):
        if other not in tried:
            tried.append(other)
            yield other, False


def _hypotheses(trial: _Trial, dim: int, positions: bool) -> Iterator[NormLayer]:
    """All norms that use all parameters; eps is not known yet."""
    names = list(trial.parameters)
    affine: dict[int, list[tuple[str | None, str | None]]] = {
        0: [(None, None)],
        1: [(name, None) for name in names] + [(None, name) for name in names],
        2: [(a, b) for a in names for b in names if a != b],
    }
    for (weight, bias), centred, over in product(affine[len(names)], (True, False), (False, True)[: 1 + positions]):
        for offset in (0.0, 1.0) if weight else (0.0,):
            yield NormLayer("", centred, dim, over, 0.0, weight, bias, offset)


def _reference(norm: NormLayer, trial: _Trial, x: Tensor) -> Tensor:
    """What a norm computes, in the precision of its input."""
    dims = tuple(range(norm.dim, 0)) if norm.positions else (norm.dim,)
    if norm.centred:
        x = x - x.mean(dims, keepdim=True)
    y = x * (x.square().mean(dims, keepdim=True) + norm.eps).rsqrt()
    vector = (-1, *[1] * (-norm.dim - 1))
    if norm.weight is not None:
        y = y * (trial.parameters[norm.weight].to(x.dtype) + norm.offset).reshape(vector)
    return y if norm.bias is None else y + trial.parameters[norm.bias].to(x.dtype).reshape(vector)


def _with_eps(norm: NormLayer, trial: _Trial, shape: Shape, eps: list[float]) -> NormLayer | None:
    """The norm with the eps that reproduces the outputs at all scales."""
    inputs = [trial.input(shape, scale) for scale in SCALES]
    outputs = [trial.output(x) for x in inputs]
    for value in eps:
        known = replace(norm, eps=value)
        if all(y is not None and _agrees(known, trial, x, y) for x, y in zip(inputs, outputs, strict=True)):
            return known
    return None


def _is_across_channels(norm: NormLayer, trial: _Trial, shape: Shape) -> bool:
    """Without parameters an instance norm over positions computes the same; unlike it, a norm takes more dimensions."""
    if trial.parameters or (norm.dim < -1 and not norm.positions):
        return True
    if norm.positions:
        norm, shape = replace(norm, dim=norm.dim - 2), (*shape, 2, 2)
    else:
        shape = (2, 2, *shape)
    x = trial.input(shape, 1.0)
    y = trial.output(x)
    return y is not None and _agrees(norm, trial, x, y)


def _agrees(norm: NormLayer, trial: _Trial, x: Tensor, y: Tensor) -> bool:
    """Whether an output is that of a norm, but for the rounding of single precision, in which many norms compute."""
    exact = _reference(norm, trial, x.double())
    rounding = max(_gap(_reference(norm, trial, x.float()).double(), exact), torch.finfo(torch.float32).eps)
    return _gap(y, exact) <= ROUNDING * rounding


def _gap(found: Tensor, exact: Tensor) -> float:
    """The largest deviation, relative to the largest entry; infinite where something is not finite."""
    gap = float((found - exact).abs().max() / exact.abs().max())
    return gap if gap == gap else float("inf")
