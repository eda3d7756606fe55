"""`partialfusion run`: fuse or prune as a recipe says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import FusionError
from . import options as opt
from .jobs import run_job, show
from .root import app, examples
from .terminal import guarded, working

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
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.")],
    dry: Annotated[bool, typer.Option("--dry-run", help="Check the recipe and stop.")] = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Fuse or prune as a recipe says; its keys are the options of fuse and prune.

    All errors are reported with their line numbers before anything is computed. Paths are relative to the current
    directory.
    """
    with working(not quiet) as report:
        report("starting PyTorch", 0.0)
        from .recipes import located, read_recipe

        job, lines = read_recipe(recipe)
        if dry:
            result = None
        else:
            try:
                result = run_job(job, report)
            except FusionError as error:
                raise located(error, recipe, lines) from error
    if result is not None:
        show(result, job, as_json=as_json, quiet=quiet)
    elif not quiet:
        typer.echo(f"{recipe} is valid: {len(job.models)} model(s) into {job.out}")
