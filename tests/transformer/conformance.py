"""The checks of one model, for the tests and for the page: each is a function of a case and says what it found."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import partialfusion as pf
from partialfusion.core.modules import named_tensors
from partialfusion.core.plain import plain

from .twins import Family, heads, rotated_twin_of, spaces, streams, twin_of
from .zoo import Entry, Inputs

MIX = (0.3, 0.7)
TOLERANCE = 1e-5
NEARLY = 0.999  # of channels kept apart: all of them in models this small, and yet they are compared first
CONFESSION = "not the ensemble"

# Models of the zoo whose alpha=1 is not the mix of the logits, and why. They must say so themselves.
NOT_EXACT = {
    "clip": "its logits are products of two normalised vectors, which no linear layer ends",
    "timm_mixer": "its tokens are mixed by position, so the layers that mix them can only be averaged",
}


class Case:
    """Two models of one kind and what several checks share: the blueprint of the second, results, outputs."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.models = [entry.build(seed) for seed in (0, 1)]
        self.inputs = entry.inputs()
        for model in self.models:  # code may make its tables when it runs for the first time
            self.run(model)
        self._before = [_condition(model) for model in self.models]

    @property
    def model(self) -> nn.Module:
        """The last one, in whose world results live."""
        return self.models[-1]

    def run(self, model: nn.Module) -> Tensor:
        with torch.no_grad():
            return self.entry.run(model, self.inputs)

    def fuse(self, models: list[nn.Module], **options: Any) -> pf.Fusion:
        return pf.fuse(models, self.inputs, blueprint=self.traced[0], allow_shortfall=True, **options)

    @cached_property
    def outputs(self) -> list[Tensor]:
        return [self.run(model) for model in self.models]

    @cached_property
    def traced(self) -> tuple[pf.Blueprint, float]:
        """The blueprint, and CPU seconds."""
        _warm_up()
        start = time.process_time()
        blueprint = pf.trace(self.model, self.inputs)
        return blueprint, time.process_time() - start

    @cached_property
    def ensemble(self) -> tuple[pf.Fusion, list[str]]:
        """alpha=1, and the warnings that were logged."""
        self.traced  # noqa: B018  what tracing logs does not count
        with warnings_logged() as messages:
            return self.fuse(self.models, alpha=1.0, mix=MIX), messages

    @cached_property
    def halfway(self) -> pf.Fusion:
        return self.fuse(self.models, alpha=0.5)

    def batches(self, count: int = 8) -> list[Inputs]:
        return [self.entry.inputs(100 + seed) for seed in range(count)]

    def untouched(self) -> list[str]:
        """What is no longer as it was in the sources, bit for bit."""
        found = []
        for i, (model, before) in enumerate(zip(self.models, self._before, strict=True)):
            now = _condition(model)
            found += [f"{name} of model {i}" for name in before | now if not _same(before.get(name), now.get(name))]
        return found


@dataclass(frozen=True)
class Traced:
    """What tracing found: kinds of space, reasons, operations without a rule."""

    seconds: float
    kinds: Counter[str]
    unknown: tuple[str, ...]
    elastic_share: float
    why: str


@dataclass(frozen=True)
class Pruned:
    """Widths of streams and numbers of heads, before and after; parameters relative to the whole."""

    streams: dict[str, tuple[int, int]]
    heads: dict[str, tuple[int, int]]
    ratio: float
    runs: bool

    @property
    def stiff(self) -> list[str]:
        """Streams and heads that have not shrunk, though they could."""
        both = {**self.streams, **{f"heads of {block}": counts for block, counts in self.heads.items()}}
        return [name for name, (before, after) in both.items() if before > 1 and after >= before]


def tracing(case: Case) -> Traced:
    blueprint, seconds = case.traced
    hidden = [s for s in blueprint if "output" not in s.reasons]
    reasons = Counter(reason for s in hidden for reason in s.reasons)
    sizes = {n: t.numel() for n, t in named_tensors(case.model).items() if isinstance(t, nn.Parameter)}
    touched = {b.parameter for s in blueprint if s.kind == "elastic" for b in s.bindings}
    return Traced(
        seconds,
        Counter(s.kind for s in hidden),
        tuple(blueprint.unknown or ()),
        sum(n for name, n in sizes.items() if name in touched) / sum(sizes.values()),
        ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common()),
    )


def ensemble(case: Case) -> float:
    """How far alpha=1 is from the mix of the logits."""
    mixed = sum(share * output for share, output in zip(MIX, case.outputs, strict=True))
    return deviation(case.run(case.ensemble[0].model), mixed)


def confessed(case: Case) -> tuple[bool, bool]:
    """Whether a result that is not the ensemble says so: in a warning, and in its summary."""
    result, messages = case.ensemble
    return any(CONFESSION in m for m in messages), CONFESSION in str(result.summary())


def itself(case: Case) -> float:
    """How far the model fused with itself at alpha=0 is from itself."""
    fused = case.fuse([case.model, case.model], alpha=0.0, mix=MIX)
    return deviation(case.run(fused.model), case.outputs[-1])


def by_hand(case: Case, family: Family) -> float:
    """How far the twin itself is from the model: nothing of the library is used."""
    return deviation(case.run(twin_of(case.model, family)), case.outputs[-1])


def twin(case: Case, family: Family, *, data: bool = False) -> float:
    """How far the model fused with its twin at alpha=0 is from itself, matched by weights or by activations.

    Statistics of batch norms are not measured again: those of a random model are not the data's.
    """
    how: dict[str, Any] = {"data": case.batches(), "norm": "analytic"} if data else {"features": "weights"}
    fused = case.fuse([twin_of(case.model, family), case.model], alpha=0.0, method="partial-ot", **how)
    return deviation(case.run(fused.model), case.outputs[-1])


def rotated(case: Case, family: Family) -> dict[str, float]:
    """How far results by directions are from what they should be: the model fused with itself, with a twin that was
    reordered and whose heads were rotated by hand, and two models rotated and then kept apart, which is the ensemble
    unless it is not exact in any case.
    """
    how: dict[str, Any] = {"similarity": "rotation", "method": "partial-ot", "data": case.batches(), "norm": "analytic"}
    mixed = sum(share * output for share, output in zip(MIX, case.outputs, strict=True))
    twin = rotated_twin_of(twin_of(case.model, family), family)
    found = {
        "twin by hand": deviation(case.run(twin), case.outputs[-1]),
        "itself": deviation(case.run(case.fuse([case.model] * 2, alpha=0.0, **how).model), case.outputs[-1]),
        "twin": deviation(case.run(case.fuse([twin, case.model], alpha=0.0, **how).model), case.outputs[-1]),
    }
    if case.entry.name not in NOT_EXACT:
        found["ensemble"] = deviation(case.run(case.fuse(case.models, alpha=NEARLY, mix=MIX, **how).model), mixed)
    return found


def pruned(case: Case, family: Family) -> Pruned:
    """Half of every elastic space."""
    small = pf.prune(case.model, case.inputs, keep=0.5, blueprint=case.traced[0], allow_shortfall=True).model
    before, after = spaces(case.model, family), spaces(small, family)
    output = case.run(small)
    return Pruned(
        {name: (width, streams(after)[name]) for name, width in streams(before).items()},
        {name: (count, heads(after, family)[name]) for name, count in heads(before, family).items()},
        sum(p.numel() for p in small.parameters()) / sum(p.numel() for p in case.model.parameters()),
        output.shape == case.outputs[-1].shape and bool(torch.isfinite(output).all()),
    )


def stored(case: Case, folder: Path) -> bool:
    """Whether the result halfway, saved and loaded into a fresh model, gives the same bit for bit."""
    path = folder / f"{case.entry.name}.safetensors"
    pf.save(case.halfway, path)
    loaded = pf.load(path, into=case.entry.build(7))
    return torch.equal(case.run(loaded.eval()), case.run(case.halfway.model))


def pretrained(case: Case, folder: Path) -> list[str]:
    """What is wrong with results of transformers' models in directories: one of a model's size through transformers
    alone, the one halfway through this library, which must be refused by theirs where the config does not describe it.
    """
    wrong = []
    small: Any = case.fuse(case.models, alpha=0.0).model
    if plain(case.model) is case.model:
        small.save_pretrained(folder / "small")
        again = type(small).from_pretrained(folder / "small")
        if not torch.equal(case.run(again.eval()), case.run(small)):
            wrong.append("transformers loads something else than the result at alpha=0")
    else:  # its parametrised weights became plain ones, which the class does not have
        with contextlib.suppress(pf.CheckpointError):
            small.save_pretrained(folder / "small")
            wrong.append("transformers writes a result that its class does not describe")
    half: Any = case.halfway.model
    pf.save_pretrained(case.halfway, folder / "half")
    if not torch.equal(case.run(pf.from_pretrained(folder / "half")), case.run(half)):
        wrong.append("partialfusion loads something else than the result halfway")
    try:
        half.save_pretrained(folder / "own")
    except pf.CheckpointError:
        return wrong
    again = type(half).from_pretrained(folder / "own")
    if not torch.equal(case.run(again.eval()), case.run(half)):
        wrong.append("transformers loads something else than the result halfway")
    return wrong


def trains(case: Case) -> list[str]:
    """What is wrong with one step of SGD on the result halfway; in evaluation mode, so that nothing is drawn."""
    source, result = copy.deepcopy(plain(case.model)), copy.deepcopy(case.halfway.model)
    moved = _gradients(case, source)
    reached = _gradients(case, result)
    wrong = [f"no gradient for {name}" for name in moved if name not in reached]
    before = case.run(result)
    torch.optim.SGD(result.parameters(), 1e-3).step()
    after = case.run(result)
    if not torch.isfinite(after).all():
        wrong.append("the outputs are not finite after the step")
    if torch.equal(before, after):
        wrong.append("the step changes nothing")
    return wrong


def deviation(found: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest entry of what is expected; infinite for another shape."""
    if found.shape != expected.shape:
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max())


@contextmanager
def warnings_logged() -> Iterator[list[str]]:
    """The messages that the library logs as warnings meanwhile."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("partialfusion")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


def _gradients(case: Case, model: nn.Module) -> set[str]:
    """The parameters that the loss moves; gradients that are not finite move nothing."""
    loss = case.entry.run(model, case.inputs).square().mean()
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    finite = bool(torch.isfinite(loss))
    return {name for name, grad in grads.items() if finite and torch.isfinite(grad).all() and grad.abs().max() > 0}


def _condition(model: nn.Module) -> dict[str, Any]:
    """Everything that must stay as it was: tensors, gradients, modes, the configuration."""
    tensors = {name: t.detach().clone() for name, t in named_tensors(model).items()}
    flags = {f"requires_grad of {name}": p.requires_grad for name, p in model.named_parameters()}
    grads = {f"grad of {name}": p.grad for name, p in model.named_parameters()}
    modes = {f"mode of {name or 'the model'}": m.training for name, m in model.named_modules()}
    config = getattr(model, "config", None)
    settings = copy.deepcopy(config.to_dict()) if hasattr(config, "to_dict") else {}
    return {**tensors, **flags, **grads, **modes, "configuration": settings}


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return torch.equal(before, now)
    return type(before) is type(now) and before == now


@cache
def _warm_up() -> None:
    """The first export of a process imports much, which is no model's time."""
    pf.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(2, 4))
