"""One row a model: what tracing finds, and whether the invariants hold on numbers."""

from __future__ import annotations

import copy
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn

import partialfusion as pf
from partialfusion.core.inputs import Inputs
from partialfusion.core.modules import named_tensors
from partialfusion.kernels import KernelPair, Plan, Reduction
from partialfusion.surgery import apply
from partialfusion.surgery.apply import target_shapes
from partialfusion.surgery.verify import deviation, reordered

from .models import build, images, needs_numbers, on_meta, randomise

TOLERANCE = 1e-4


@dataclass
class Row:
    """What is known of a model."""

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    elastic_share: float = 0.0
    why: str = ""
    unknown: str = ""
    seconds: float = 0.0
    checks: dict[str, str] = field(default_factory=dict)

    @property
    def traced(self) -> bool:
        return bool(self.kinds) and not self.unknown


def trace_any(name: str) -> Row:
    """The blueprint of a model of any size; without numbers, the widened model must trace to the same spaces."""
    device = torch.device("meta" if on_meta(name) else "cpu")
    with torch.device("cpu" if needs_numbers(name) else device):
        model = build(name).to(device)
    x = images(name, 1).to(device)
    start = time.perf_counter()
    large = sum(p.numel() for p in model.parameters()) > 100_000_000
    blueprint = pf.trace(model, x, check=on_meta(name) or not large)
    row = described(name, blueprint, model)
    row.seconds = time.perf_counter() - start
    return row


def described(name: str, blueprint: pf.Blueprint, model: nn.Module) -> Row:
    hidden = [s for s in blueprint if "output" not in s.reasons]
    reasons = Counter(r for s in hidden for r in s.reasons)
    return Row(
        name,
        Counter(s.kind for s in hidden),
        elastic_share(blueprint, model),
        ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common()),
        ", ".join(blueprint.unknown or ()),
    )


def elastic_share(blueprint: pf.Blueprint, model: nn.Module) -> float:
    """The share of the parameters that have an axis in an elastic space."""
    sizes = {n: t.numel() for n, t in named_tensors(model).items() if isinstance(t, nn.Parameter)}
    touched = {b.parameter for s in blueprint if s.kind == "elastic" for b in s.bindings}
    return sum(n for name, n in sizes.items() if name in touched) / sum(sizes.values())


def check_numbers(name: str, *, use: bool = False) -> Row:
    """Every invariant on real weights; with `use`, also what one does with a fused model."""
    model, x = randomise(build(name), 0), images(name)
    start = time.perf_counter()
    blueprint = pf.trace(model, x)
    row = described(name, blueprint, model)
    row.seconds = time.perf_counter() - start
    with torch.no_grad():
        expected = model(x)
        checks: dict[str, Callable[[], str]] = {
            "reordered": lambda: _reordered(model, blueprint, x, expected),
            "itself": lambda: _itself(model, blueprint, x, expected),
            "twin": lambda: _twin(model, blueprint, x, expected),
            "ensemble": lambda: _ensemble(name, model, blueprint, x, expected),
            "halved": lambda: _halved(model, blueprint, x),
        }
        if use:
            checks["use"] = lambda: _use(model, blueprint, x)
        for check, run in checks.items():
            try:
                row.checks[check] = run()
            except Exception as error:
                row.checks[check] = f"FAILED: {type(error).__name__}: {str(error)[:80]}"
    return row


def _verdict(found: torch.Tensor, expected: torch.Tensor) -> str:
    gap = deviation(found, expected)
    return f"{gap:.0e}" if gap < TOLERANCE else f"FAILED: {gap:.0e}"


def _twin_of(model: nn.Module, blueprint: pf.Blueprint, x: torch.Tensor) -> nn.Module:
    free = [s.name for s in blueprint if s.kind != "rigid"]
    return apply([model], [blueprint], reordered(blueprint, free, np.random.default_rng(1)), Inputs.of(x)).model


def _reordered(model: nn.Module, blueprint: pf.Blueprint, x: torch.Tensor, expected: torch.Tensor) -> str:
    return _verdict(_twin_of(model, blueprint, x)(x), expected)


def _itself(model: nn.Module, blueprint: pf.Blueprint, x: torch.Tensor, expected: torch.Tensor) -> str:
    options = {"blueprint": blueprint, "align": "greedy", "allow_shortfall": True}
    fused = pf.fuse([model, model], x, alpha=0.25, mix=(0.3, 0.7), **options)
    return _verdict(fused.model(x), expected)


def _twin(model: nn.Module, blueprint: pf.Blueprint, x: torch.Tensor, expected: torch.Tensor) -> str:
    twin = _twin_of(model, blueprint, x)
    return _verdict(pf.fuse([twin, model], x, alpha=0.0, blueprint=blueprint, allow_shortfall=True).model(x), expected)


def _ensemble(name: str, model: nn.Module, blueprint: pf.Blueprint, x: torch.Tensor, expected: torch.Tensor) -> str:
    if blueprint.averaged:
        return f"not exact: {len(blueprint.averaged)} parameters are averaged"
    other = randomise(build(name), 1)
    fused = pf.fuse([other, model], x, alpha=1.0, blueprint=blueprint, check=False, allow_shortfall=True).model
    mixed = (other(x) + expected) / 2
    if blueprint.nonlinear_after:
        gap = deviation(fused(x), mixed)
        return f"mixed before {', '.join(blueprint.nonlinear_after)} ({gap:.0e})"
    return _verdict(fused(x), mixed)


def _halved(model: nn.Module, blueprint: pf.Blueprint, x: torch.Tensor) -> str:
    """A random half of every elastic space, at least two units; the count must be what the plan predicts."""
    rng = np.random.default_rng(2)
    reductions = {}
    for space in blueprint:
        n = space.width
        kept = np.sort(rng.permutation(n)[: max(2, n // 2)]) if space.kind == "elastic" else np.arange(n)
        m = len(kept)
        pair = KernelPair(np.arange(m), kept, np.ones(m), np.ones(m), m, n)
        reductions[space.name] = Reduction((pair,), 0, (m,), (KernelPair.identity(n),))
    plan = Plan(reductions, (1.0,))
    small = apply([model], [blueprint], plan, Inputs.of(x)).model
    shapes = target_shapes(blueprint, plan)
    predicted = sum(int(np.prod(shapes[n])) for n, _ in small.named_parameters())
    counted = sum(p.numel() for p in small.parameters())
    finite = bool(torch.isfinite(small(x)).all())
    if counted != predicted or not finite:
        return f"FAILED: {counted:,} parameters, {predicted:,} predicted, finite: {finite}"
    return f"{counted / sum(p.numel() for p in model.parameters()):.2f}×"


def _use(model: nn.Module, blueprint: pf.Blueprint, x: torch.Tensor) -> str:
    fused = pf.fuse([model, model], x, alpha=0.25, blueprint=blueprint, align="greedy", allow_shortfall=True).model
    expected = fused(x)
    again = copy.deepcopy(fused)
    again.load_state_dict(fused.state_dict())
    found = {"state dict": again(x), "compile": torch.compile(fused, backend="aot_eager")(x), "onnx": _onnx(fused, x)}
    torch.compiler.reset()
    wrong = [what for what, y in found.items() if deviation(y, expected) > TOLERANCE]
    with torch.enable_grad():
        again.train()
        optimiser = torch.optim.SGD(again.parameters(), 1e-4)
        again(torch.cat([x, x])).square().mean().backward()
        optimiser.step()
        again.eval()
    if deviation(again(x), expected) == 0:
        wrong.append("training")
    return f"FAILED: {', '.join(wrong)}" if wrong else "yes"


def _onnx(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, (x,), file, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(file)
        return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def one_thread() -> None:
    torch.set_num_threads(1)


def guarded(kind: str, name: str) -> Row:
    """A row that cannot be made is listed as failing."""
    try:
        return trace_any(name) if kind == "trace" else check_numbers(name, use=True)
    except Exception as error:
        return Row(name, unknown=f"FAILED: {type(error).__name__}: {str(error)[:100]}")
