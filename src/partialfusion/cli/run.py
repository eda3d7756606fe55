"""`partialfusion run`: a recipe, carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import FusionError
from . import options as opt
from .jobs import carry_out, show
from .root import app
from .terminal import examples, guarded, working

RECIPE = """[bold]recipe.yaml[/bold]
    models:
      - {factory: nets:resnet, checkpoint: a.safetensors}
      - {factory: nets:resnet, checkpoint: b.safetensors}
    input: 1,3,32,32
    method: partial-ot
    alpha: {"layer4*": 0.8, "*": 0.2}
    mix: [0.4, 0.6]
    data: images.npy
    refit: true
    output: fused.safetensors
"""


@app.command(epilog=f"{examples('run recipe.yaml', 'run recipe.yaml --dry-run')}\n\n{RECIPE}")
@guarded
def run(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file.")],
    dry: Annotated[bool, typer.Option("--dry-run", help="Check the recipe and do nothing.")] = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Fuse or prune as a recipe says: its keys are the options of fuse and prune.

    All its mistakes are told with their lines, before anything is computed. Files are named as from the current folder.
    """
    with working(not quiet) as tell:
        tell("starting PyTorch", 0.0)
        from .recipes import located, read_recipe

        job, lines = read_recipe(recipe)
        if dry:
            result = None
        else:
            try:
                result = carry_out(job, tell)
            except FusionError as error:
                raise located(error, recipe, lines) from error
    if result is not None:
        show(result, job, as_json=as_json, quiet=quiet)
    elif not quiet:
        typer.echo(f"{recipe} is sound: {len(job.models)} model(s) into {job.out}")
