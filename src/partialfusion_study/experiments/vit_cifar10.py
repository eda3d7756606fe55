"""Our own experiment: vision transformers on CIFAR-10, fused by channels and by directions, beside a random pairing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from ..cell import Cell
from ..cells import Compared, Parents, SoftMerge
from ..methods import AVERAGE, IMAGES, MethodConfig
from ..recipes import Pair
from ..report import Figure, Line, Panel, Row, Table, Value
from .experiment import Experiment, Report, Results
from .grids import ACCURACY, EQUAL
from .runs import measured
from .settings import QUICK_TESTED, Scale, cifar_vit_pairs, scaled
from .transformers import SIZES_TOLD

TESTED = 5000  # the first test images
SIZES = (0.0, 0.25, 0.5, 0.75)  # below α = 1, of the first two methods
FEW = (0.0, 0.5)  # of the others but interpolation, which has the first
SIZE = "effective parameters, relative to one model"
AIM = 0.8  # of the way from a random pairing to the ensemble, at alpha = 0 and refitted
FUSION = MethodConfig(images=IMAGES)
INTERPOLATION = MethodConfig("interpolate", images=IMAGES, refit=True)
FUSED, DIRECTIONS = "fused", "directions, fused"
REFITTED, DIRECTIONS_REFITTED = "refitted", "directions, refitted"
METHODS = {
    FUSED: FUSION,
    DIRECTIONS: replace(FUSION, similarity="rotation", joint=True),
    "directions in one pass, fused": replace(FUSION, similarity="rotation"),
    REFITTED: replace(FUSION, refit=True),
    DIRECTIONS_REFITTED: replace(FUSION, similarity="rotation", joint=True, refit=True),
    "interpolated, refitted": INTERPOLATION,
    "directions, interpolated, refitted": replace(INTERPOLATION, similarity="rotation"),
}
INTERPOLATED = "interpolated, refitted", "directions, interpolated, refitted"
COMPARED = (  # channels with directions
    (FUSED, DIRECTIONS),
    (FUSED, "directions in one pass, fused"),
    (REFITTED, DIRECTIONS_REFITTED),
    INTERPOLATED,
)
RANDOM = {
    "random pairing": replace(AVERAGE, images=IMAGES),
    "random pairing, refitted": replace(AVERAGE, images=IMAGES, refit=True),
}
SOFT = {
    "one to one, across heads": 0.0,
    "softly (Sinkhorn, 0.08), across heads": 0.08,
}


@dataclass(frozen=True)
class Dial:
    """One pair, fused in every way below α = 1, and in one way there, where all of them are the ensemble."""

    title: str
    pair: Pair
    scale: Scale

    @property
    def sizes(self) -> dict[str, tuple[float, ...]]:
        """Method → the sizes."""
        found: dict[str, tuple[float, ...]] = {
            **dict.fromkeys(METHODS, FEW),
            **dict.fromkeys(INTERPOLATED, SIZES[:1]),
            FUSED: (*SIZES, 1.0),
            DIRECTIONS: SIZES,
        }
        if self.scale == "quick":
            return {label: (0.0, 1.0) if label == FUSED else (0.0,) for label in found}
        return found

    @property
    def tested(self) -> int:
        return QUICK_TESTED if self.scale == "quick" else TESTED

    def parents(self) -> Parents:
        return Parents(self.pair, (EQUAL,), self.tested)

    def fusion(self, config: MethodConfig, alpha: float) -> Compared:
        return Compared(self.pair, scaled(config, self.scale), alpha, EQUAL, (), self.tested)

    def soft(self, regulariser: float) -> SoftMerge:
        return SoftMerge(self.pair, regulariser, scaled(FUSION, self.scale).images, self.tested)

    def cells(self) -> list[Cell]:
        one_size: list[Cell] = [*(self.fusion(config, 0.0) for config in RANDOM.values())]
        one_size += [self.soft(regulariser) for regulariser in SOFT.values()]
        sized = [self.fusion(config, alpha) for label, config in METHODS.items() for alpha in self.sizes[label]]
        return [self.parents(), *one_size, *sized]

    def accuracy(self, results: Results, label: str, alpha: float) -> float:
        found: float = results(self.fusion(METHODS[label], alpha))["accuracy"]
        return found

    def table(self, results: Results, name: str) -> Table:
        every = self.sizes[FUSED]
        parents = results(self.parents())
        rows: list[Row] = []
        for label, config in METHODS.items():
            here = self.sizes[label]
            found = {a: results(self.fusion(config, a)) for a in here}
            rows.append((label, *(Value.of([found[a]["accuracy"]]) if a in found else None for a in every)))
        for label, config in RANDOM.items():
            rows.append(_first(label, results(self.fusion(config, 0.0))["accuracy"], len(every)))
        for label, regulariser in SOFT.items():
            rows.append(_first(label, results(self.soft(regulariser))["accuracy"], len(every)))
        rows.append(_first("model A", parents["a"], len(every)))
        rows.append(_first("model B", parents["b"], len(every)))
        rows.append(("ensemble", *[None] * (len(every) - 1), Value.of(parents["ensemble"])))
        ratios = [results(self.fusion(FUSION, a))["ratio"] for a in every]
        rows.append((f"fused: {SIZE}", *(Value.of([ratio]) for ratio in ratios)))
        columns = (self.title, *(f"α = {a:g}" for a in every))
        return Table(name, f"Networks of {self.title}: accuracy (%)", columns, tuple(rows))

    def panel(self, results: Results) -> Panel:
        lines = []
        for label, config in METHODS.items():
            found = [results(self.fusion(config, a)) for a in self.sizes[label]]
            lines.append(Line(label, tuple(f["ratio"] for f in found), tuple(f["accuracy"] for f in found)))
        parents = results(self.parents())
        lines.append(Line("ensemble", (2.0,), (parents["ensemble"][0],), style="dashed"))
        lines.append(Line("single network", (1.0,), (fmean([parents["a"], parents["b"]]),), style="dotted"))
        return Panel(self.title, SIZE, ACCURACY, tuple(lines))

    def way(self, results: Results, label: str, start: str) -> float:
        """How far a refitted method of one network's size is on the way from a random pairing to the ensemble."""
        random = results(self.fusion(RANDOM[start], 0.0))["accuracy"]
        ensemble = results(self.parents())["ensemble"][0]
        return (self.accuracy(results, label, 0.0) - random) / (ensemble - random) if ensemble > random else 1.0


def _first(label: str, value: float, columns: int) -> Row:
    """A row with a number at the size of one network."""
    return (label, Value.of([value]), *[None] * (columns - 1))


def dials(scale: Scale) -> list[Dial]:
    made = [Dial(title, pair, scale) for title, pair in cifar_vit_pairs(scale).items()]
    return made[-1:] if scale == "quick" else made


def cells(scale: Scale) -> list[Cell]:
    return [cell for dial in dials(scale) for cell in dial.cells()]


def report(scale: Scale, results: Results) -> Report:
    made = dials(scale)
    tables = [measured(results, partial(dial.table, name=f"sizes-{k}")) for k, dial in enumerate(made)]
    text = f"{_setting(made)} {SIZES_TOLD}\n\n{RELATED}\n\n{_details(made, results)}"
    return Report(_finding(made[0], results), text, (measured(results, lambda r: _figure(made, r)), *tables))


def _figure(made: list[Dial], results: Results) -> Figure:
    return Figure("curves", "Fused vision transformers", tuple(dial.panel(results) for dial in made))


def _setting(made: list[Dial]) -> str:
    dial = made[0]
    one, images = dial.pair.a, scaled(FUSION, dial.scale).images
    quick = " **Quick settings: the numbers mean nothing.**" if dial.scale == "quick" else ""
    return (
        f"Vision transformers on CIFAR-10 with {one.width // 16} blocks, four heads, a residual stream of {one.width} "
        "channels, MLPs of twice that and patches of 4×4 pixels, which start from different random weights. They were "
        f"trained with Adam (learning rate {one.training.rate:g}, one cycle) in batches of {one.training.batch} for "
        f"**{one.training.epochs} epochs only**, on a CPU, so their accuracy is far below what such networks reach; "
        "compare rows with each other. The networks of *all images* have seen everything but 250 images of each class; "
        "of those of *even and odd classes*, A has seen 4,600 images of each class with an even number and 150 of each "
        "other, B the reverse. Nothing was chosen on test images for this page; numbers are on the first "
        f"{dial.tested:,} of them. Channels are matched by activations on {images:,} unlabelled images that no network "
        "was trained on, which refit uses as well. *Directions* are aligned jointly "
        '(`similarity="rotation"`, `align="fixed-point"`) where the row does not say "in one pass" '
        '(`align="greedy"`); interpolation is after one pass. Shares are equal, and zero blocks are kept in refits. A '
        "*random pairing* fuses channel i with channel i, which is the plain average: the networks start from "
        "different random weights, so that any order of their channels is as random as any other. There is one pair of "
        f"a kind, so there are no error bars.{quick}"
    )


RELATED = (
    "The published relative is Transformer Fusion with Optimal Transport "
    "([Imfeld et al.](https://arxiv.org/abs/2310.05719), ICLR 2024). It makes one network of the size of one, without "
    "a dial and without refit. Its alignment as rows of ours: channels of a space are transported one to one or softly "
    "(Sinkhorn, with the strength 0.08 that its "
    "[published code](https://github.com/graldij/transformer-fusion/blob/main/experiments/fuse_hf_vit_cifar10.yaml) "
    "names as the best for activations), those of heads to any head of the layer, and a soft map is a dense kernel "
    "pair. What differs from it: queries and keys have one map here (two there, by default), the residual stream has "
    "one for the whole network (there one for each layer, averaged where branches meet), and 1,000 images are used "
    "instead of 200. Its own one-shot figure for two vision transformers on CIFAR-10 is about 60 %, as a "
    "[reviewer](https://openreview.net/forum?id=LjeqMvQpen) of the paper quotes it; the table itself was not at hand. "
    "Those networks are larger and were trained to the end."
)


def _finding(dial: Dial, results: Results) -> str:
    fused, refitted = (dial.accuracy(results, label, 0.0) for label in (FUSED, REFITTED))
    return (
        f"At the size of one network, two vision transformers that saw {dial.title} fuse to {fused:.2f} %, and to "
        f"{refitted:.2f} % refitted."
    )


def _details(made: list[Dial], results: Results) -> str:
    sentences = []
    for dial in made:
        random, refitted = (results(dial.fusion(config, 0.0))["accuracy"] for config in RANDOM.values())
        ensemble = results(dial.parents())["ensemble"][0]
        found = {label: dial.accuracy(results, label, 0.0) for label in METHODS}
        best = max((REFITTED, DIRECTIONS_REFITTED, *INTERPOLATED), key=found.__getitem__)
        plain, after = (dial.way(results, best, start) for start in RANDOM)
        soft = results(dial.soft(list(SOFT.values())[-1]))["accuracy"]
        sentences.append(
            f"{dial.title.capitalize()}, at the size of one network: fused {found[FUSED]:.2f} %, by directions "
            f"{found[DIRECTIONS]:.2f} %, softly across heads {soft:.2f} %, a random pairing {random:.2f} %; refitted "
            f"{found[REFITTED]:.2f} %, {found[DIRECTIONS_REFITTED]:.2f} % by directions, and the random pairing "
            f"{refitted:.2f} %; the ensemble has {ensemble:.2f} %. The best refitted one ({best}, {found[best]:.2f} %) "
            f"is {plain:.0%} of the way from the random pairing to the ensemble, and {after:.0%} from the refitted "
            f"random pairing; we aimed at {AIM:.0%}, which the first {'reaches' if plain >= AIM else 'misses'} and the "
            f"second {'reaches' if after >= AIM else 'misses'}."
        )
    gaps = [
        (dial.accuracy(results, turned, a) - dial.accuracy(results, plain, a), turned, a, dial.title)
        for dial in made
        for plain, turned in COMPARED
        for a in dial.sizes[turned]
    ]
    behind = [gap for gap in gaps if gap[0] < 0]
    worst = min(gaps)
    told = f", at most by {-worst[0]:.2f} points ({worst[1]}, α = {worst[2]:g}, {worst[3]})" if behind else ""
    sentences.append(
        f"Directions are level with channels or ahead in {len(gaps) - len(behind)} of {len(gaps)} cases below α = 1"
        f"{', and behind in ' + str(len(behind)) if behind else ''}{told}."
    )
    distance = max(results(dial.fusion(FUSION, 1.0))["distance"] for dial in made)
    sentences.append(f"α = 1 is the ensemble; logits differ by {distance:.0e} in relative terms.")
    return " ".join(sentences)


EXPERIMENT = Experiment("vit_cifar10", "Vision transformers on CIFAR-10 (ours)", (), "CIFAR-10", cells, report)
