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

    from ..demo import Study

PAGE = Path("partialfusion-demo.html")
TITLE = "Two specialists on handwritten digits"


@app.command(epilog=examples("demo", "demo --seed 1 --json --no-page", "demo --save digits --page digits.html"))
@guarded
def demo(
    seed: Seed = 0,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save the two networks here, as a.safetensors and b.safetensors."),
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


def _print_study(study: Study, saved: Path | None, page: Path | None) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    a, b = study.find("model A"), study.find("model B")
    seen_a = f"{study.trained_a} images: all of the digit {study.digit}, a tenth of the others"
    seen_b = f"{study.trained_b} images: no {study.digit} at all, nine tenths of the others"
    console.print(f"\nTwo networks, tested on {study.tested} images that neither has seen:\n")
    console.print(f"  A  {a.accuracy:.1%}  trained on {seen_a}")
    console.print(f"  B  {b.accuracy:.1%}  trained on {seen_b}")
    console.print("\nOne network made of both, with A and B mixed in three ways:")
    console.print(_study_table(study))
    console.print(
        "ratio: parameters relative to one parent. as blocks: without the zero blocks\n"
        "between A and B, as pf.to_blocks and pf.save hold them. alpha: the fraction of\n"
        "the channels that stay isolated, from 0 (as wide as one parent) to 1 (the exact\n"
        "ensemble).\n"
        "The plain average does without alignment: it averages channel i of A with\n"
        "channel i of B, whatever they stand for.\n"
    )
    if page is not None:
        console.print(f"Wrote {page}; open it in a browser.\n", markup=False, soft_wrap=True)
    if saved is not None:
        console.print(f"Saved a.safetensors and b.safetensors in {saved}.\n", markup=False, soft_wrap=True)
    console.print("[bold]Try next[/bold]\n")
    for line in next_steps(saved):
        console.print(f"  {line}".rstrip(), markup=False, soft_wrap=True)
    console.print()


def next_steps(saved: Path | None) -> list[str]:
    """Commands and Python code to try after the demo."""
    net = "partialfusion.demo:DigitsNet"
    folder = saved or Path("digits")
    a, b, fused = (shlex.quote(str(folder / f"{name}.safetensors")) for name in ("a", "b", "fused"))
    return [
        f"partialfusion trace {net} --input 1,64",
        *([] if saved else [f"partialfusion demo --save {folder}"]),
        f"partialfusion fuse {net} {a} {b} \\",
        f"    --input 1,64 --alpha 0.25 --alpha hidden1=0.75 --out {fused}",
        "",
        "import partialfusion as pf",
        "from partialfusion import demo",
        "",
        "pair = demo.specialists(seed=1)",
        "result = pf.fuse([pair.a, pair.b], pair.test.images[:2], alpha=0.5, mix=[0.6, 0.4])",
        "print(result.summary())",
    ]


def _study_table(study: Study) -> Table:
    """One row per size, with the accuracies of all mixes side by side."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("network", no_wrap=True)
    table.add_column("parameters", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("as blocks", justify="right")
    table.add_column("ratio", justify="right")
    shares = list(dict.fromkeys(p.mix[0] for p in study.points if p.method == "ensemble"))
    for share in shares:
        table.add_column(f"{share:.1f} : {1 - share:.1f}", justify="right")
    alphas = list(dict.fromkeys(p.alpha for p in study.points if p.method == "partial-ot"))
    rows: list[tuple[str, str, float | None]] = [("plain average", "average", 0.0)]
    rows += [(f"fused, alpha {alpha:.2f}", "partial-ot", alpha) for alpha in alphas]
    rows += [("ensemble", "ensemble", None)]
    for label, method, alpha in rows:
        points = [study.find(method, alpha=alpha, share=share) for share in shares]
        cells = [f"{p.accuracy:.1%}" for p in points]
        first = points[0]
        sizes = f"{first.dense:,}", f"{first.ratio:.2f}", f"{first.effective:,}", f"{first.effective_ratio:.2f}"
        table.add_row(label, *sizes, *cells)
        if method == "average":
            table.add_section()
    return table
