"""Fine-tuned fusions against one network widened to the same size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..cell import Cell
from ..cells.finetune import Start
from ..report import Row, Table, Verdict
from .experiment import Experiment, Report, Results
from .settings import ALPHAS, Scale, setting
from .tuning import RULE, Tuning, mlps, resnets

MLP = {
    "random": ("94.1", "93.7", "93.1", "93.8", "92.9", "93.1", "92.8"),
    "net2net": ("94.5", "94.7", "94.8", "94.9", "94.7", "94.9", "95.0"),
    "fusion": ("95.1", "95.7", "96.1", "96.2", "96.3", "96.5", "96.5"),
}
RESNET = {
    "random": ("86.8", "47.9", "47.2", "48.0", "47.9", "48.3", "49.0"),
    "net2net": ("86.8", "86.8", "86.5", "86.8", "86.4", "86.4", "86.6"),
    "fusion": ("85.3", "88.3", "90.0", "90.3", "90.8", "91.4", "91.7"),
}
ANEW = "all weights at random"
WIDENED = "random channels added"
NAMES: dict[Start, str] = {
    "fresh": ANEW,
    "random": WIDENED,
    "net2net": "Net2WiderNet",
    "fusion": "partial fusion",
}
CHANCE = 10.0
WIDER: tuple[Start, ...] = ("random", "net2net", "fresh")  # single networks of the fusion's widths


@dataclass(frozen=True)
class Block:
    """One kind of network: its fine-tuning, what is compared, and the paper's numbers."""

    name: str
    title: str
    tuning: Tuning
    paper: Mapping[str, Sequence[str]]
    alone: str

    def table(self, results: Results) -> Table:
        def rows(results: Results) -> list[Row]:
            published = {start: self.paper["random" if start == "fresh" else start] for start in NAMES}
            return [
                self.tuning.row(results, name, start, "after", paper=published[start]) for start, name in NAMES.items()
            ]

        note = f"{self.tuning.note(results, f'model A {self.alone}')} At α = 0 nothing is widened."
        return self.tuning.table(results, self.name, f"{self.title}: accuracy (%) after fine-tuning", rows, note)

    def cells(self) -> list[Cell]:
        tuning = self.tuning
        wider = [
            tuning.cell(k, start, alpha) for k in range(len(tuning.pairs)) for alpha in tuning.alphas for start in WIDER
        ]
        return [*tuning.cells("fusion"), *tuning.parents(), *wider]

    def ahead(self, results: Results) -> dict[float, bool]:
        """Alpha → whether the fusion is better than every baseline after fine-tuning."""
        return {
            alpha: all(
                self.tuning.mean(results, "fusion", alpha, "after") > self.tuning.mean(results, start, alpha, "after")
                for start in WIDER
            )
            for alpha in self.tuning.alphas
        }

    def claims(self, results: Results) -> list[Verdict]:
        wide = [a for a in self.tuning.alphas if a > 0]
        ahead = self.ahead(results)
        gaps = {
            a: self.tuning.mean(results, "fusion", a, "after")
            - max(self.tuning.mean(results, start, a, "after") for start in WIDER)
            for a in wide
        }
        kept = [self.tuning.mean(results, "net2net", a, "after") for a in self.tuning.alphas]
        return [
            Verdict.of(
                f"{self.title}: partial fusion surpasses the widened networks from α = 0.2 on.",
                [ahead[a] for a in wide],
                "points over the best of them: " + ", ".join(f"{gap:+.2f} (α = {a:g})" for a, gap in gaps.items()),
                cases="sizes",
            ).among("α", ALPHAS[1:], wide),
            Verdict.of(
                f"{self.title}: Net2WiderNet stays near the single network at every α (within one point).",
                [abs(found - kept[0]) < 1 for found in kept[1:]],
                self.tuning.listed(kept),
                cases="sizes",
            ).among("α", ALPHAS[1:], wide),
        ]


def blocks(scale: Scale) -> tuple[Block, Block]:
    """MLPs and ResNet-18."""
    return (
        Block("mlp", "MLP on split MNIST", mlps(scale), MLP, "94.4 after fine-tuning"),
        Block("resnet", "ResNet-18 on split CIFAR-10", resnets(scale, coarse=True), RESNET, "86.8 after fine-tuning"),
    )


def cells(scale: Scale) -> list[Cell]:
    return [cell for block in blocks(scale) for cell in block.cells()]


def report(scale: Scale, results: Results) -> Report:
    both = blocks(scale)
    findings = []
    for block in both:
        ahead = block.ahead(results)
        findings.append(
            f"{block.title}: fusion is ahead of all baselines at {sum(ahead.values())} of {len(ahead)} sizes"
        )
    text = " ".join(setting(scale, block.tuning.pairs) for block in both)
    text += (
        " Two kinds of random widening are compared, because the paper gives no details of its own. "
        f"*{WIDENED.capitalize()}* keeps the weights of model A and draws those of the added channels as PyTorch would "
        "at the new width. "
        f"*{ANEW.capitalize()}* keeps nothing, so that accuracy is at chance before fine-tuning, as the paper reports "
        f"for ResNet-18; its numbers for random widening are beside both. {RULE}"
    )
    return Report("; ".join(findings) + ".", text, tuple(block.table(results) for block in both))


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    both = blocks(scale)
    return [
        *(verdict for block in both for verdict in block.claims(results)),
        *_random(both[0], results),
        *_lost(both[1], results),
    ]


def _random(block: Block, results: Results) -> list[Verdict]:
    """MLPs: randomly widened networks get slightly worse with alpha."""
    found = []
    for start in ("random", "fresh"):
        curve = block.tuning.curve(results, start, "after")
        found.append(
            Verdict.of(
                f"{block.title}: random widening ({NAMES[start]}) gets slightly worse with α (at most three points).",
                [-3 < curve[-1] - curve[0] < 0],
                f"{block.tuning.listed(curve)} (paper: 94.1 to 92.8)",
            ).among("α", ALPHAS, block.tuning.alphas)
        )
    return found


def _lost(block: Block, results: Results) -> list[Verdict]:
    """ResNet-18: random widening is at chance before fine-tuning, and recovers only half."""
    found = []
    for start in ("random", "fresh"):
        claim = (
            f"{block.title}: random widening ({NAMES[start]}) is at chance before fine-tuning, and recovers only 48 %."
        )
        wide = [a for a in block.tuning.alphas if a > 0]
        before, after = ([block.tuning.mean(results, start, a, what) for a in wide] for what in ("before", "after"))
        single = block.tuning.mean(results, "net2net", 0.0, "after")
        listed = ", ".join(f"{b:.2f} and {e:.2f} % (α = {a:g})" for a, b, e in zip(wide, before, after, strict=True))
        found.append(
            Verdict.of(
                claim,
                [b < CHANCE + 5 and e < single - 15 for b, e in zip(before, after, strict=True)],
                f"before and after: {listed}; the single network {single:.2f} % after fine-tuning",
                cases="sizes",
            ).among("α", ALPHAS[1:], wide)
        )
    return found


EXPERIMENT = Experiment(
    "random-widen", "Capacity baselines of fine-tuning", ("Table 3",), "MNIST, CIFAR-10", cells, report, claims
)
