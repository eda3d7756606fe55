"""`partialfusion demo`: two specialists on handwritten digits, fused."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import CheckpointError
from .frontier import PAGES, check_outputs
from .options import AsJson, Seed
from .root import app, examples
from .terminal import guarded, print_json, working

if TYPE_CHECKING:
    from rich.table import Table

    from ..demo import Specialists, Study

PAGE = Path("partialfusion-demo.html")
TITLE = "Two specialists on handwritten digits"


@app.command(epilog=examples("demo", "demo --seed 1 --json --no-page", "demo --save digits --page digits.html"))
@guarded
def demo(
    seed: Seed = 0,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Save the two networks here, as a.safetensors and b.safetensors, and unlabelled images as images.npy.",
        ),
    ] = None,
    page: Annotated[
        Path, typer.Option(metavar="FILE", help="Where to write the table as an interactive page, .html.")
    ] = PAGE,
    no_page: Annotated[bool, typer.Option("--no-page", help="Do not write the page.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train two specialists on handwritten digits and fuse them, from plain average to ensemble. Takes seconds.

    Prints a table and writes it as a page that opens offline.
    """
    with working() as report:
        report("starting PyTorch", 0.0)
        from .. import demo as digits

        if not no_page:
            check_outputs([page], suffixes=PAGES)
        if save is not None:
            _make_folder(save)
        pair = digits.specialists(seed, progress=report)
        if save is not None:
            from ..io.checkpoints import save_state

            save_state(pair.a, save / "a.safetensors")
            save_state(pair.b, save / "b.safetensors")
            _save_images(pair, save / "images.npy")
        study = digits.study(pair, details=not no_page, progress=report)
        if not no_page:
            study.frontier.save_html(page, title=TITLE)
    if as_json:
        print_json(study.record())
    else:
        _print_study(study, save, None if no_page else page)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot create the folder {path}: {error.strerror}; choose another") from error


def _save_images(pair: Specialists, path: Path) -> None:
    """Write the unlabelled images, for --data."""
    import numpy as np
    import torch

    from ..demo import unlabelled
    from ..io.files import replacing

    with replacing(path) as file:
        np.save(file, torch.cat(unlabelled(pair)).numpy())


def _print_study(study: Study, saved: Path | None, page: Path | None) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    a, b = study.find("model A"), study.find("model B")
    seen_a = f"{study.trained_a} images: all of the digit {study.digit}, a tenth of the others"
    seen_b = f"{study.trained_b} images: no {study.digit} at all, nine tenths of the others"
    console.print(f"\nTwo networks, tested on {study.tested} images that neither has seen:\n")
    console.print(f"  A  {a.accuracy:.1%}  trained on {seen_a}")
    console.print(f"  B  {b.accuracy:.1%}  trained on {seen_b}")
    console.print(f"\nOne network made of both (A and B have {b.dense:,} parameters each), by the mix:")
    console.print(_study_table(study))
    console.print(
        "size: parameters of the module. as blocks: without the zeros between A and B,\n"
        "as pf.to_blocks and pf.save hold it. alpha: the fraction of the channels that\n"
        "stay isolated, from 0 (as wide as one network) to 1 (the exact ensemble).\n"
        "The plain average does without alignment: it averages channel i of A with\n"
        "channel i of B, whatever they stand for. Fitted: method interpolate, refitted to\n"
        f"A and B on {study.trained_a + study.trained_b:,} training images without their labels.\n"
        f"This is one pair of networks, and {study.tested / 100:.0f} test images are one percent.\n"
    )
    if page is not None:
        console.print(f"Wrote {page}; open it in a browser.\n", markup=False, soft_wrap=True)
    if saved is not None:
        console.print(f"Saved a.safetensors, b.safetensors and images.npy in {saved}.\n", markup=False, soft_wrap=True)
    console.print("[bold]Try next[/bold]\n")
    for line in next_steps(saved):
        console.print(f"  {line}".rstrip(), markup=False, soft_wrap=True)
    console.print()


def next_steps(saved: Path | None) -> list[str]:
    """Commands and Python code to try after the demo."""
    net = "partialfusion.demo:DigitsNet"
    folder = saved or Path("digits")
    a, b, fused = (shlex.quote(str(folder / f"{name}.safetensors")) for name in ("a", "b", "fused"))
    images = shlex.quote(str(folder / "images.npy"))
    return [
        f"partialfusion trace {net} --input 1,64",
        *([] if saved else [f"partialfusion demo --save {folder}"]),
        f"partialfusion fuse {net} {a} {b} \\",
        f"    --data {images} --method auto --budget 1.0 --out {fused}",
        "",
        "import partialfusion as pf",
        "from partialfusion import demo",
        "",
        "pair = demo.specialists(seed=1)",
        "data = demo.unlabelled(pair)",
        'result = pf.fuse([pair.a, pair.b], data=data, budget=1.0, method="auto")',
        "print(result.summary(), demo.tested(result.model))",
    ]


def _study_table(study: Study) -> Table:
    """One row per size, with the accuracies of all mixes side by side."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("network", no_wrap=True)
    table.add_column("size", justify="right")
    table.add_column("as blocks", justify="right", no_wrap=True)
    shares = list(dict.fromkeys(p.mix[0] for p in study.points if p.method == "ensemble"))
    for share in shares:
        table.add_column(f"{share:.1f} : {1 - share:.1f}", justify="right", no_wrap=True)
    alphas = list(dict.fromkeys(p.alpha for p in study.points if p.method == "partial-ot"))
    rows: list[tuple[str, str, float | None]] = [("plain average", "average", 0.0)]
    rows += [(f"fused, alpha {alpha:.2f}", "partial-ot", alpha) for alpha in alphas]
    rows += [(f"fitted, alpha {alpha:.2f}", "interpolate", alpha) for alpha in alphas if alpha != 1]
    rows += [("ensemble", "ensemble", None)]
    last = next((alpha for alpha in reversed(alphas) if alpha != 1), None)
    ends = {("average", 0.0), ("partial-ot", alphas[-1]), ("interpolate", last)}
    for label, method, alpha in rows:
        points = [study.find(method, alpha=alpha, share=share) for share in shares]
        cells = [f"{p.accuracy:.1%}" for p in points]
        first = points[0]
        sizes = f"{first.ratio:.2f}×", f"{first.effective_ratio:.2f}×"
        table.add_row(label, *sizes, *cells, end_section=(method, alpha) in ends)
    return table
