"""The application that every command registers with, and what the help of all commands has in common."""

from __future__ import annotations

from typing import Annotated

import typer

from ..core.version import __version__

# Modules that need torch are imported inside the commands, so that help and usage errors appear at once.

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="partialfusion",
    help="Combine trained neural networks: the dial between averaging weights and ensembling.",
    epilog="Start with: partialfusion demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=HELP_NAMES,
)


def examples(*commands: str) -> str:
    """The examples at the end of a command's help."""
    return "\n".join(["[bold]Examples[/bold]", *(f"  partialfusion {command}" for command in commands)])


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"partialfusion {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
