"""How many images activations need, and of which kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from ..cell import Cell
from ..methods import ACTIVATIONS, CLUSTER, DISTANCES, IMAGES, Drawn, MethodConfig
from ..report import Row, Table, Value, Verdict
from .experiment import Experiment, Report, Results
from .grids import EQUAL, Grid
from .runs import measured
from .settings import Scale, mnist_pairs, setting

COUNTS = (100, 300, 1000, 3000, 10_000)
CORRELATION, DISTANCE = "partial OT, correlation", "partial OT, squared distance"
METHODS = {DISTANCE: DISTANCES, CORRELATION: ACTIVATIONS, "clustering": CLUSTER}
SETTINGS = {"split MNIST": True, "MNIST": False}


def counts(scale: Scale) -> tuple[int, ...]:
    return (50, 100) if scale == "quick" else COUNTS


def usual(scale: Scale) -> int:
    """The number of images that the other experiments have, or about as many at the quick scale."""
    return counts(scale)[len(counts(scale)) // 2]


def config(base: MethodConfig, images: int, drawn_from: Drawn = "train") -> MethodConfig:
    return replace(base, images=images, drawn_from=drawn_from)


def make_grid(scale: Scale, split: bool) -> Grid:
    """All variants of both methods at the size of one model; networks of the capacity table's training."""
    variants = {f"{name}, {n}": config(base, n) for name, base in METHODS.items() for n in counts(scale)}
    variants |= {f"{name}, test": config(base, usual(scale), "test") for name, base in METHODS.items()}
    return Grid(mnist_pairs(split, scale, epochs=5), variants, (0.0,), (EQUAL,), scale)


def cells(scale: Scale) -> list[Cell]:
    return [cell for split in SETTINGS.values() for cell in make_grid(scale, split).cells()]


def report(scale: Scale, results: Results) -> Report:
    tables = []
    for number, (title, split) in enumerate(SETTINGS.items()):

        def table(results: Results, number: int = number, title: str = title, split: bool = split) -> Table:
            grid = make_grid(scale, split)
            rows: list[Row] = []
            for name in METHODS:
                labels = [*(f"{name}, {n}" for n in counts(scale)), f"{name}, test"]
                rows.append((name, *(Value.of(grid.accuracies(results, label, 0.0, EQUAL)) for label in labels)))
            columns = ("", *(f"{n:,} training images" for n in counts(scale)), f"{usual(scale):,} test images")
            return Table(f"images-{number}", f"{title}: accuracy (%)", columns, tuple(rows))

        tables.append(measured(results, table))
    spread = _range(scale, results)
    ranges = f"Means over the pairs differ by at most {max(spread.values()):.2f} points from 300 to 10,000 images."
    text = (
        f"{setting(scale, mnist_pairs(True, scale, epochs=5))} At the size of one model and equal shares, with "
        f"activations on different images; the usual number is {IMAGES:,}. The networks are trained for 5 epochs, as "
        "in the capacity table. Partial OT matches activations by their squared distance, as in the paper, or by "
        "correlation, which is this library's default."
    )
    gaps = [
        _mean(scale, results, CORRELATION, split) - _mean(scale, results, DISTANCE, split)
        for split in SETTINGS.values()
    ]
    means = f"{gaps[0]:+.2f} points on split MNIST and {gaps[1]:+.2f} on MNIST"
    text += f" {ranges} Correlation minus squared distance, on average over the numbers of images: {means}."
    finding = f"Matching by correlation instead of squared distance gains {means}."
    return Report(finding if scale != "quick" else "Quick settings.", text, tuple(tables))


def _mean(scale: Scale, results: Results, name: str, split: bool) -> float:
    """The mean of a method over all numbers of images."""
    return fmean(make_grid(scale, split).mean(results, f"{name}, {n}", 0.0) for n in counts(scale))


def _range(scale: Scale, results: Results) -> dict[str, float]:
    """Method and setting → how far the means over the pairs differ between numbers of images, without the fewest."""
    found = {}
    for title, split in SETTINGS.items():
        grid = make_grid(scale, split)
        for name in METHODS:
            means = [grid.mean(results, f"{name}, {n}", 0.0) for n in counts(scale)[1:]]
            found[f"{name} on {title}"] = max(means) - min(means)
    return found


def claims(scale: Scale, results: Results) -> Sequence[Verdict]:
    spread = _range(scale, results)
    noise, apart = {}, {}
    for title, split in SETTINGS.items():
        grid = make_grid(scale, split)
        for name in METHODS:
            few, many = (stdev(grid.accuracies(results, f"{name}, {n}", 0.0, EQUAL)) for n in (COUNTS[0], COUNTS[-1]))
            noise[f"{name} on {title}"] = few, many
            train, test = (grid.accuracies(results, f"{name}, {k}", 0.0, EQUAL) for k in (1000, "test"))
            apart[f"{name} on {title}"] = fmean(test) - fmean(train), stdev(train)
    return [
        Verdict.of(
            "The number of images makes little difference (300 to 10,000 within half a point).",
            [gap < 0.5 for gap in spread.values()],
            "range of the means in points: " + ", ".join(f"{gap:.2f} ({name})" for name, gap in spread.items()),
        ),
        Verdict.of(
            "More images slightly reduce the noise across seeds.",
            [many < few for few, many in noise.values()],
            "standard deviation with 100 and with 10,000 images: "
            + ", ".join(f"{few:.2f} and {many:.2f} ({name})" for name, (few, many) in noise.items()),
        ),
        Verdict.of(
            "Training or test images show no clear difference (less than the deviation over the pairs).",
            [abs(gap) < deviation for gap, deviation in apart.values()],
            "test minus training images in points: "
            + ", ".join(f"{gap:+.2f} (deviation {deviation:.2f}, {name})" for name, (gap, deviation) in apart.items()),
        ),
    ]


EXPERIMENT = Experiment(
    "images", "The number and kind of images for activations", ("Appendix A",), "MNIST", cells, report, claims
)
