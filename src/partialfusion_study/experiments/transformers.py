"""Our own experiment: vision transformers fused at every size, by kind of space, and pruned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ..cell import Cell
from ..cells import Compared, Compress, Parents, Sliced
from ..methods import AVERAGE, IMAGES, OURS, MethodConfig
from ..recipes import Pair
from ..report import Figure, Line, Panel, Row, Table, Value
from .experiment import Experiment, Report, Results
from .grids import ACCURACY, EQUAL
from .runs import measured
from .settings import QUICK_ALPHAS, Scale, scaled, setting, tested, vit_pairs
from .whole import INTERPOLATION, KINDS, REDUCTIONS, Whole

SIZES = (0.0, 0.25, 0.5, 0.75, 1.0)
KEEP = 0.5
SIZE = "effective parameters, relative to one model"
FUSED, REFITTED = "fused", "refitted"
FUSION = MethodConfig(images=IMAGES)
FUSIONS = {FUSED: FUSION, REFITTED: replace(FUSION, refit=True)}
INTERPOLATIONS = {"interpolated": INTERPOLATION, "interpolated, refitted": replace(INTERPOLATION, refit=True)}
ROTATED = replace(FUSION, similarity="rotation")
ROTATIONS = {
    "directions, fused": ROTATED,
    "directions, refitted": replace(ROTATED, refit=True),
    "directions, interpolated": replace(ROTATED, method="interpolate"),
    "directions, interpolated, refitted": replace(ROTATED, method="interpolate", refit=True),
}
JOINT = {"directions aligned jointly, fused": replace(ROTATED, joint=True)}
SIZED = {**FUSIONS, **INTERPOLATIONS, **ROTATIONS, **JOINT}
STREAM = "patches"
FOUND = "Before refit directions beat channels by far, and jointly aligned ones most; refit leaves little of that."
RELATED = (
    "The published relative is Transformer Fusion with Optimal Transport "
    "([Imfeld et al.](https://arxiv.org/abs/2310.05719), ICLR 2024). It transports channels, one to one or softly "
    "(Sinkhorn), those of heads across all heads of a layer, and makes one network of the size of one. Its one-shot "
    "figure for two vision transformers on CIFAR-10 is about 60 %, as a "
    "[reviewer](https://openreview.net/forum?id=LjeqMvQpen) of the paper quotes it. "
    "[Zhang et al.](https://arxiv.org/abs/2502.00264) (ICML 2025) rotate the heads, by weights alone. There is one "
    "pair, so there are no error bars."
)
SIZES_TOLD = (
    "Sizes are in effective parameters, those outside of zero blocks; as one dense network a fusion has more. That "
    "number is not among the results of these runs."
)
SLICING = (
    "Deleting the smallest principal directions is the idea of [SliceGPT](https://arxiv.org/abs/2401.15024), but not "
    "its rule: SliceGPT takes the directions of second moments, not of covariances, and new ones for every attention "
    "and MLP, with matrices on the shortcuts; here one rotation holds for the whole stream."
)
SLICES = (0.75, 0.5)  # of the residual stream, and very nearly of the parameters
PRUNINGS = {"clustered": OURS, "clustered, refitted": replace(OURS, refit=True)}


@dataclass(frozen=True)
class Dial:
    """Pairs of transformers, fused in every way and pruned."""

    pairs: list[Pair]
    scale: Scale

    @property
    def sizes(self) -> tuple[float, ...]:
        return (QUICK_ALPHAS[0], QUICK_ALPHAS[-1]) if self.scale == "quick" else SIZES

    @property
    def slices(self) -> tuple[float, ...]:
        return SLICES[-1:] if self.scale == "quick" else SLICES

    @property
    def whole(self) -> Whole:
        return Whole(self.pairs, self.scale, tested(self.scale))

    def parents(self) -> list[Parents]:
        return self.whole.parents()

    def fusions(self, config: MethodConfig, alpha: float, fixed: tuple[str, ...] = ()) -> list[Compared]:
        made = scaled(config, self.scale)
        return [Compared(pair, made, alpha, EQUAL, fixed, tested(self.scale)) for pair in self.pairs]

    def averages(self) -> list[Compared]:
        return self.fusions(AVERAGE, 0.0)

    def pruned(self, config: MethodConfig) -> list[Compress]:
        """Model A of every pair."""
        return [Compress(pair.a, scaled(config, self.scale), KEEP, tested(self.scale)) for pair in self.pairs]

    def sliced(self, config: MethodConfig, keep: float, refit: bool) -> list[Sliced]:
        """The residual stream of model A of every pair."""
        made = replace(scaled(config, self.scale), refit=refit)
        return [Sliced(pair.a, made, keep, tested(self.scale), space=STREAM) for pair in self.pairs]

    def cells(self) -> list[Cell]:
        groups: list[Sequence[Cell]] = [self.parents(), self.averages()]
        for config in FUSIONS.values():
            groups += [self.fusions(config, alpha) for alpha in self.sizes]
            groups += [self.fusions(config, 0.0, fixed) for fixed in KINDS.values()]
        for config in (*INTERPOLATIONS.values(), *ROTATIONS.values(), *JOINT.values()):
            groups += [self.fusions(config, alpha) for alpha in self.sizes]
        groups += [self.pruned(config) for config in PRUNINGS.values()]
        for config in REDUCTIONS.values():
            groups += [self.sliced(config, keep, refit) for keep in self.slices for refit in (False, True)]
        return [*(cell for group in groups for cell in group), *self.whole.cells()]

    def ensembles(self, results: Results) -> list[float]:
        return [results(cell)["ensemble"][0] for cell in self.parents()]

    def singles(self, results: Results) -> list[float]:
        """Both networks of every pair."""
        return [results(cell)[name] for cell in self.parents() for name in ("a", "b")]

    def sized(self, results: Results) -> Table:
        """All spaces at one alpha."""
        found = {label: [self.fusions(config, a) for a in self.sizes] for label, config in SIZED.items()}
        rows: list[Row] = [(label, *(_value(results, cells, "accuracy") for cells in found[label])) for label in found]
        rows += [
            (f"{label}: {SIZE}", *(_value(results, cells, "ratio") for cells in found[label]))
            for label in (FUSED, *list(INTERPOLATIONS)[:1])
        ]
        for label in found:
            distances = (fmean(results(cell)["distance"] for cell in cells) for cells in found[label])
            rows.append((f"{label}: distance from the ensemble", *(f"{distance:.2g}" for distance in distances)))
        note = "Distances are those of the logits on the test images, relative to the norm of the ensemble's."
        columns = ("all spaces", *(f"α = {a:g}" for a in self.sizes))
        return Table("sizes", "Accuracy (%) by size", columns, tuple(rows), note)

    def by_kind(self, results: Results) -> Table:
        """One kind of space kept apart; a dash where the library can keep none of them apart."""
        rows: list[Row] = []
        for label, config in FUSIONS.items():
            rows.append((label, *(self._apart(results, config, kind, "accuracy") for kind in KINDS)))
        rows.append((SIZE, *(self._apart(results, FUSION, kind, "ratio") for kind in KINDS)))
        title = "Accuracy (%) with one kind of space kept apart and the others fused"
        return Table("kinds", title, ("kept apart", *KINDS), tuple(rows))

    def _apart(self, results: Results, config: MethodConfig, kind: str, what: str) -> Value | None:
        cells = self.fusions(config, 0.0, KINDS[kind])
        return _value(results, cells, what) if all(results(cell)["apart"] for cell in cells) else None

    def baselines(self, results: Results) -> Table:
        averages = self.averages()
        rows: list[Row] = [
            (f"model {name.upper()}", Value.of(results(cell)[name] for cell in self.parents()), "1")
            for name in ("a", "b")
        ]
        rows.append(("ensemble", Value.of(self.ensembles(results)), "2"))
        rows.append(("plain average", _value(results, averages, "accuracy"), _value(results, averages, "ratio")))
        for label, config in PRUNINGS.items():
            cells = self.pruned(config)
            name = f"model A, {label}, {KEEP:g} of the channels kept"
            rows.append((name, _value(results, cells, "accuracy"), _value(results, cells, "ratio")))
        return Table("others", "For comparison: accuracy (%) and size", ("", "accuracy", SIZE), tuple(rows))

    def stream_sizes(self, results: Results) -> Table:
        """One network with a part of its stream."""
        rows: list[Row] = []
        for label, config in REDUCTIONS.items():
            both = [[self.sliced(config, keep, refit) for refit in (False, True)] for keep in self.slices]
            rows.append((label, *(_value(results, cells, "accuracy") for pair in both for cells in pair)))
        sizes = [fmean(results(c)["ratio"] for c in self.sliced(OURS, keep, False)) for keep in self.slices]
        heads = [f"{size:.0%} of the parameters{then}" for size in sizes for then in ("", ", refitted")]
        alone = fmean(results(cell)["a"] for cell in self.parents())
        title = f"One network with fewer channels in its residual stream: accuracy (%); the whole has {alone:.2f}"
        return Table("slices", title, ("", *heads), tuple(rows))

    def figure(self, results: Results) -> Figure:
        shown = {**FUSIONS, **INTERPOLATIONS} | {label: c for label, c in ROTATIONS.items() if not c.refit}
        lines = [
            self._line(results, label, [self.fusions(config, a) for a in self.sizes]) for label, config in shown.items()
        ]
        for kind, fixed in KINDS.items():
            if self._apart(results, FUSION, kind, "ratio") is not None:
                lines.append(self._line(results, f"{kind} apart", [self.fusions(FUSION, 0.0, fixed)]))
        for label, config in PRUNINGS.items():
            lines.append(self._line(results, f"one model, {label}", [self.pruned(config)]))
        lines.append(Line("ensemble", (2.0,), (fmean(self.ensembles(results)),), style="dashed"))
        lines.append(Line("single network", (1.0,), (fmean(self.singles(results)),), style="dotted"))
        return Figure("curves", "Fused vision transformers", (Panel("", SIZE, ACCURACY, tuple(lines)),))

    def _line(self, results: Results, label: str, groups: list[list[Compared]] | list[list[Compress]]) -> Line:
        xs, ys = (
            tuple(fmean(results(cell)[what] for cell in cells) for cells in groups) for what in ("ratio", "accuracy")
        )
        return Line(label, xs, ys, style="line" if len(groups) > 1 else "points")


def _value(results: Results, cells: Sequence[Compared | Compress], what: str) -> Value:
    return Value.of(results(cell)[what] for cell in cells)


def dial(scale: Scale) -> Dial:
    return Dial(vit_pairs(scale), scale)


def cells(scale: Scale) -> list[Cell]:
    return dial(scale).cells()


def report(scale: Scale, results: Results) -> Report:
    made = dial(scale)
    images = scaled(FUSION, scale).images
    text = (
        f"{setting(scale, made.pairs)} They read patches of 7×7 pixels; their width is that of the residual "
        "stream, their MLPs are twice as wide, and layer norms come before attention and MLPs. Channels are matched by "
        f"activations on {images:,} unlabelled training images, which refit uses as well; interpolation keeps as many "
        "channels of both networks and reads the others as combinations of them. *Directions* are those of the "
        "residual stream and of the heads, which are rotated before they are compared "
        '(`similarity="rotation"`), in one pass (`align="greedy"`) or *jointly* (`align="fixed-point"`), where weights '
        "count as much as activations; that was chosen on training images. Shares are equal. "
        "At α = 1 the networks are fused and evaluated as at any other size; nothing is taken from the ensemble. "
        f"{SLICING} {SIZES_TOLD} {RELATED}\n\n{_details(made, results)}\n\n{made.whole.told(results)}"
    )
    whole = made.whole
    tables = (
        *(made.sized, made.by_kind, made.stream_sizes),
        *(whole.one_table, whole.left_table, whole.both_table, made.baselines),
    )
    parts: list[Figure | Table] = [measured(results, made.figure)]
    parts += [measured(results, table) for table in tables]
    return Report(_finding(made, results), text, tuple(parts))


def _finding(made: Dial, results: Results) -> str:
    fused, refitted = (
        fmean(results(c)["accuracy"] for c in made.fusions(config, made.sizes[0])) for config in FUSIONS.values()
    )
    return f"At the size of one model, fusion has {fused:.2f} %, and {refitted:.2f} % refitted. {FOUND}"


def _details(made: Dial, results: Results) -> str:
    first, last = (
        {label: fmean(results(c)["accuracy"] for c in made.fusions(config, a)) for label, config in FUSIONS.items()}
        for a in (made.sizes[0], made.sizes[-1])
    )
    distance = max(results(cell)["distance"] for cell in made.fusions(FUSION, made.sizes[-1]))
    average = fmean(results(cell)["accuracy"] for cell in made.averages())
    read, refitted = (
        fmean(results(c)["accuracy"] for c in made.fusions(config, made.sizes[0])) for config in INTERPOLATIONS.values()
    )
    turned = [fmean(results(c)["accuracy"] for c in made.fusions(m, made.sizes[0])) for m in ROTATIONS.values()]
    (jointly,) = (fmean(results(c)["accuracy"] for c in made.fusions(m, made.sizes[0])) for m in JOINT.values())
    ahead, steps, behind = _ahead(made, results)
    return (
        f"At the size of one model, fusion reaches {first[FUSED]:.2f} %, and {first[REFITTED]:.2f} % refitted; "
        f"interpolation {read:.2f} %, and {refitted:.2f} % refitted; by directions fusion {turned[0]:.2f} %, and "
        f"{turned[1]:.2f} % refitted, interpolation {turned[2]:.2f} %, and {turned[3]:.2f} % refitted; aligned "
        f"jointly, fusion {jointly:.2f} %. Directions are level with channels or ahead in {ahead} of {steps} cases "
        f"below α = 1, and at most {behind:.2f} points behind. The plain average has {average:.2f} % and a single "
        f"network {fmean(made.singles(results)):.2f} %. α = 1 gives "
        f"{last[FUSED]:.2f} %, the ensemble {fmean(made.ensembles(results)):.2f} %; their logits differ by "
        f"{distance:.0e} in relative terms. {FOUND}"
    )


def _ahead(made: Dial, results: Results) -> tuple[int, int, float]:
    """In how many cases directions are level with channels or ahead, of how many, and by how much they are behind."""
    pairs = [*zip((*FUSIONS.values(), *INTERPOLATIONS.values()), ROTATIONS.values(), strict=True)]
    pairs += [(FUSION, config) for config in JOINT.values()]
    found = [
        [fmean(results(c)["accuracy"] for c in made.fusions(config, alpha)) for config in both]
        for both in pairs
        for alpha in made.sizes
        if alpha < 1
    ]
    ahead = sum(turned >= plain for plain, turned in found)
    return ahead, len(found), max(0.0, *(plain - turned for plain, turned in found))


EXPERIMENT = Experiment("transformers", "Vision transformers (ours)", (), "MNIST", cells, report)
