"""Our own experiment: language models of two domains fused at several sizes, beside arithmetic on their weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from ..cell import Cell
from ..cells import TextArithmetic, TextMerge, TextParents
from ..cells.texts import Rule
from ..data.text import DOMAINS, TITLES
from ..methods import AVERAGE, MethodConfig
from ..report import Figure, Line, Panel, Row, Table, Value
from ..text_recipes import TextPair, TextRecipe
from .experiment import Experiment, Report, Results
from .runs import measured
from .settings import FURTHER, Scale, gpt_pairs, scaled, tested_bytes

TUNED = "tuned from one base"
AIMED = 0.2  # the alpha at which half of the gap was aimed at, for pairs with a base
SIZES, FEW = (0.0, 0.1, AIMED, 0.4), (0.0, AIMED)  # below α = 1
PASSAGES = 256  # unlabelled
FACTORS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)  # of task vectors
CHOSEN_ON = 16_384  # bytes of each domain
SIZE = "effective parameters, relative to one model"
DENSE = "dense parameters, relative to one model"
BITS = "bits per byte"
FUSION = MethodConfig(images=PASSAGES)
INTERPOLATION = MethodConfig("interpolate", images=PASSAGES)
FUSED = "partial OT"
METHODS = {
    FUSED: FUSION,
    "partial OT, refitted": replace(FUSION, refit=True),
    "interpolated": INTERPOLATION,
    "interpolated, refitted": replace(INTERPOLATION, refit=True),
    "partial OT by directions": replace(FUSION, similarity="rotation"),
    "interpolated by directions, refitted": replace(INTERPOLATION, similarity="rotation", refit=True),
}
TURNED = {  # by channels → by directions
    FUSED: "partial OT by directions",
    "interpolated, refitted": "interpolated by directions, refitted",
}
RULES: dict[Rule, str] = {"task arithmetic": "task arithmetic", "ties": "TIES"}
COLUMNS = (*DOMAINS, "mean")


@dataclass(frozen=True)
class Dial:
    """One pair, fused in every way below α = 1, and in one way there, where all of them are the ensemble."""

    title: str
    pair: TextPair
    scale: Scale

    @property
    def sizes(self) -> dict[str, tuple[float, ...]]:
        """Method → the sizes."""
        below = FEW if self.scale == "quick" or self.title == FURTHER else SIZES
        return {label: (*below, 1.0) if label == FUSED else below for label in METHODS}

    @property
    def tested(self) -> int:
        return tested_bytes(self.scale)

    def parents(self) -> TextParents:
        return TextParents(self.pair, self.tested)

    def fusion(self, config: MethodConfig, alpha: float) -> TextMerge:
        return TextMerge(self.pair, scaled(config, self.scale), alpha, self.tested)

    def average(self) -> TextMerge:
        return self.fusion(AVERAGE, 0.0)

    def arithmetic(self) -> dict[Rule, TextArithmetic]:
        """Only for networks with a common base."""
        chosen_on = 320 if self.scale == "quick" else CHOSEN_ON
        factors = FACTORS[::4] if self.scale == "quick" else FACTORS
        rules = RULES if self.pair.base is not None else {}
        return {rule: TextArithmetic(self.pair, rule, factors, chosen_on, self.tested) for rule in rules}

    def cells(self) -> list[Cell]:
        fusions = [self.fusion(config, alpha) for label, config in METHODS.items() for alpha in self.sizes[label]]
        return [self.parents(), self.average(), *self.arithmetic().values(), *fusions]

    def table(self, results: Results, name: str) -> Table:
        parents = results(self.parents())
        rows: list[Row] = [_row("trained on Python", parents["a"]), _row("trained on prose", parents["b"])]
        if self.pair.base is not None:
            rows.append(_row("their base", parents["base"]))
        rows.append(_row("ensemble", parents["ensemble"], "2"))
        average = results(self.average())
        rows.append(_row("plain average", average, *_ratios(average)))
        for rule, cell in self.arithmetic().items():
            found = results(cell)
            rows.append(_row(f"{RULES[rule]}, λ = {found['factor']:g}", found))
        for label, config in METHODS.items():
            for alpha in self.sizes[label]:
                found = results(self.fusion(config, alpha))
                rows.append(_row(f"{label}, α = {alpha:g}", found, *_ratios(found)))
        return Table(name, f"Networks {self.title}: {BITS}, less is better", ("", *COLUMNS, SIZE, DENSE), tuple(rows))

    def panel(self, results: Results) -> Panel:
        parents = results(self.parents())
        lines = []
        for label, config in METHODS.items():
            found = [results(self.fusion(config, alpha)) for alpha in self.sizes[label]]
            lines.append(Line(label, tuple(f["ratio"] for f in found), tuple(_mean(f) for f in found)))
        lines.append(Line("plain average", (1.0,), (_mean(results(self.average())),), style="points"))
        for rule, cell in self.arithmetic().items():
            lines.append(Line(RULES[rule], (1.0,), (_mean(results(cell)),), style="points"))
        lines.append(Line("ensemble", (2.0,), (_mean(parents["ensemble"]),), style="dashed"))
        return Panel(self.title, SIZE, f"{BITS}, mean of both domains", tuple(lines))

    def closed(self, results: Results, label: str, alpha: float) -> dict[str, float | None]:
        """Domain → the part of the gap between the plain average and the ensemble that a fusion closes.

        None where there is no gap: where the ensemble is not better than the average.
        """
        average, ensemble = results(self.average()), results(self.parents())["ensemble"]
        found = results(self.fusion(METHODS[label], alpha))
        gaps = {domain: average[domain] - ensemble[domain] for domain in DOMAINS}
        return {d: (average[d] - found[d]) / gap if gap > 0 else None for d, gap in gaps.items()}


def _row(label: str, bits: dict[str, Any], size: str | Value = "1", dense: str | Value | None = None) -> Row:
    """A row of the table; `dense` is the same as `size` unless given."""
    values = [Value.of([bits[domain]], digits=3) for domain in DOMAINS]
    return label, *values, Value.of([_mean(bits)], digits=3), size, size if dense is None else dense


def _ratios(found: dict[str, Any]) -> tuple[Value, Value]:
    return Value.of([found["ratio"]]), Value.of([found["dense"]])


def _mean(bits: dict[str, Any]) -> float:
    return fmean(bits[domain] for domain in DOMAINS)


def dials(scale: Scale) -> dict[str, Dial]:
    return {title: Dial(title, pair, scale) for title, pair in gpt_pairs(scale).items()}


def cells(scale: Scale) -> list[Cell]:
    return [cell for dial in dials(scale).values() for cell in dial.cells()]


def report(scale: Scale, results: Results) -> Report:
    made = dials(scale)
    tables = [measured(results, partial(dial.table, name=f"bits-{k}")) for k, dial in enumerate(made.values())]
    figure = measured(results, lambda r: _figure(made, r))
    text = f"{_setting(made)}\n\n{_merging(made)}\n\n{_details(made, results)}"
    return Report(_finding(made, results), text, (figure, *tables))


def _figure(made: dict[str, Dial], results: Results) -> Figure:
    return Figure("curves", "Fused language models", tuple(dial.panel(results) for dial in made.values()))


def _setting(made: dict[str, Dial]) -> str:
    dial = made[TUNED]
    one = dial.pair.a
    quick = " **Quick settings: the numbers mean nothing.**" if dial.scale == "quick" else ""
    return (
        f"Language models of bytes: transformers with {one.depth} blocks, {one.heads} heads, a residual stream of "
        f"{one.width} channels, MLPs of four times that, layer norms before attention and MLPs, learned positions "
        f"and a context of {one.context} bytes. They read two domains: {TITLES['python']} and {TITLES['prose']} "
        "(Jane Austen's six); whole files are held out from training, of the novels one, *Northanger Abbey*. "
        f"Bits per byte are measured on {dial.tested:,} held-out bytes of each domain in passages of {one.context} "
        "bytes, every byte predicted from those before it in its passage; the mean is over the domains. "
        f"{' '.join(_trained(dial) for dial in made.values())} Training is AdamW with a warm-up and a cosine schedule, "
        f"weight decay {one.training.decay:g}, for minutes on one core: good for comparing ways of merging, not for "
        f"writing text. There is one pair of a kind, so there are no error bars.{quick}"
    )


def _trained(dial: Dial) -> str:
    """How the networks of a pair were trained, in a sentence."""
    one, base = dial.pair.a, dial.pair.base
    own = f"{_read(one)} million bytes of its domain, learning rate {one.training.rate:g}"
    if base is None:
        return f"Networks *{dial.title}* start from different random weights, and each saw {own}."
    return (
        f"Networks *{dial.title}* start from a network that saw {_read(base)} million bytes of both domains, learning "
        f"rate {base.training.rate:g}, and each saw {own}."
    )


def _read(recipe: TextRecipe) -> str:
    """Millions of bytes."""
    return f"{recipe.training.steps * recipe.training.batch * recipe.context / 1e6:.1f}"


def _merging(made: dict[str, Dial]) -> str:
    dial = made[TUNED]
    factors = ", ".join(f"{f:g}" for f in next(iter(dial.arithmetic().values())).factors)
    chosen_on = next(iter(dial.arithmetic().values())).chosen_on
    return (
        f"Channels are matched by activations on {scaled(FUSION, dial.scale).images:,} unlabelled passages of the "
        "training text, half of them of each domain, which refit uses as well; directions are aligned in one pass "
        '(`align="greedy"`). Shares are equal, and the ensemble is '
        "the mean of the logits. At α = 1 partial OT fuses and is evaluated as at any other size; there, all methods "
        "give the ensemble. *Task arithmetic* "
        "([Ilharco et al.](https://arxiv.org/abs/2212.04089)) adds λ times the sum of both networks' differences from "
        "the base to the base; *TIES* ([Yadav et al.](https://arxiv.org/abs/2306.01708)) keeps the largest 20 % of "
        "each difference, elects a sign for every entry and averages those that have it. Of λ = "
        f"{factors}, the best on {chosen_on:,} bytes of each domain's training text is used. Both need a common base. "
        "Task arithmetic with λ = 0.5 is the plain average."
    )


def _finding(made: dict[str, Dial], results: Results) -> str:
    dial = next(iter(made.values()))
    average, best = results(dial.average()), results(dial.fusion(METHODS[_best(dial, results)], AIMED))
    return (
        f"Of networks {dial.title}, the plain average has {_mean(average):.3f} {BITS} and the best fusion at "
        f"α = {AIMED:g} {_mean(best):.3f}."
    )


def _details(made: dict[str, Dial], results: Results) -> str:
    parts = []
    for dial in made.values():
        best = _best(dial, results)
        parts += [_summary(dial, results, best), f"{_closed(dial, results, best)}."]
        if dial.pair.base is not None:
            parts.append(_verdict(dial, results, best))
        parts.append(_turned(dial, results))
    return " ".join(parts)


def _turned(dial: Dial, results: Results) -> str:
    """How often directions are no worse than channels."""
    behind = [
        _mean(results(dial.fusion(METHODS[turned], alpha))) - _mean(results(dial.fusion(METHODS[label], alpha)))
        for label, turned in TURNED.items()
        for alpha in dial.sizes[turned]
    ]
    worse = [gap for gap in behind if gap > 0]
    told = f", and behind in {len(worse)}, at most by {max(worse):.3f}" if worse else ""
    cause = " (networks of one base have their directions in common already)" if worse and dial.pair.base else ""
    return f"Directions are ahead of channels in {len(behind) - len(worse)} of {len(behind)} cases{told}{cause}."


def _best(dial: Dial, results: Results) -> str:
    """The method with the fewest bits at the size that was aimed at."""
    return min(METHODS, key=lambda label: _mean(results(dial.fusion(METHODS[label], AIMED))))


def _summary(dial: Dial, results: Results, best: str) -> str:
    parents = results(dial.parents())
    found = {"the base": _mean(parents["base"])} if "base" in parents else {}
    found["plain average"] = _mean(results(dial.average()))
    found |= {RULES[rule]: _mean(results(cell)) for rule, cell in dial.arithmetic().items()}
    found[f"the best of {len(METHODS)} fusions at α = {AIMED:g} ({best})"] = _mean(
        results(dial.fusion(METHODS[best], AIMED))
    )
    found["ensemble"] = _mean(parents["ensemble"])
    return f"Networks {dial.title}: {', '.join(f'{label} {bits:.3f}' for label, bits in found.items())} {BITS}."


def _closed(dial: Dial, results: Results, label: str) -> str:
    """The parts of the gap that a fusion of that size closes, in words."""
    average, ensemble = results(dial.average()), results(dial.parents())["ensemble"]
    found = [
        f"on {d} there is none, the ensemble having {ensemble[d]:.3f} and the average {average[d]:.3f}"
        if part is None
        else f"on {d} that fusion closes {100 * part:.0f} % of it ({average[d]:.3f} to {ensemble[d]:.3f})"
        for d, part in dial.closed(results, label, AIMED).items()
    ]
    return f"The gap between the average and the ensemble: {'; '.join(found)}"


def _verdict(dial: Dial, results: Results, label: str) -> str:
    """Whether what was aimed at is reached."""
    parts = dial.closed(results, label, AIMED).values()
    met = all(part is not None and part >= 0.5 for part in parts)
    found = (
        f"For networks of one base we aimed at half of the gap on both domains, which is {'' if met else 'not '}reached"
    )
    average, ensemble = _mean(results(dial.average())), _mean(results(dial.parents())["ensemble"])
    if met or ensemble < average:
        return f"{found}."
    return (
        f"{found}: in the mean over the domains the ensemble of logits ({ensemble:.3f}) is itself worse than the "
        f"average ({average:.3f}), so that in the mean there is no gap to close."
    )


EXPERIMENT = Experiment("language", "Language models (ours)", (), "Python and prose", cells, report)
