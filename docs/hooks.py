"""What the build of the site adds to the pages: the commands with their options, and new pages of results."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MARK = "<!-- commands -->"


def on_config(config: Any) -> Any:
    """Append pages of results that the navigation does not list yet: `make results` may write new ones."""
    named = set(_paths(config.nav))
    results = Path(config.docs_dir) / "results"
    others = sorted(f"results/{page.name}" for page in results.glob("*.md") if f"results/{page.name}" not in named)
    section = next(entry["Results"] for entry in config.nav if "Results" in entry)
    section.extend([{"Further": others}] if others else [])
    return config


def _paths(nav: Any) -> Iterator[str]:
    """The pages listed in a navigation, at any depth."""
    if isinstance(nav, str):
        yield nav
    for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _paths(entry)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark in a page by every command with its arguments, options and examples."""
    return markdown.replace(MARK, "\n".join(described())) if MARK in markdown else markdown


def described() -> Iterator[str]:
    """Markdown lines that describe every command, in the order of the help."""
    for name, command in commands():
        yield from (f"## {name}", "", *_section(name, command))


def commands() -> list[tuple[str, Any]]:
    """Every command with its full name; does not import PyTorch."""
    if str(ROOT / "src") not in sys.path:
        sys.path.insert(0, str(ROOT / "src"))
    from typer.main import get_command

    from partialfusion.cli import app

    return list(_leaves("", get_command(app)))


def _leaves(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(f"{prefix}{name} ", command)
        else:
            yield prefix + name, command


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if not p.opts[0].startswith("-")]
    options = [p for p in command.params if p.opts[0].startswith("-") and not p.hidden]
    given = " ".join(p.metavar or p.name.upper() for p in arguments)
    needed = " ".join(f"{p.opts[0]} {p.metavar or p.name.upper()}" for p in options if p.required)
    usage = " ".join(part for part in ("partialfusion", name, given, needed, "[OPTIONS]") if part)
    yield from (_escaped(command.help or ""), "", "```text", usage, "```", "")
    yield from ("| argument or option | meaning | default |", "| --- | --- | --- |")
    for p in (*arguments, *options):
        yield f"| {_called(p)} | {_escaped(p.help or '')} | {_default(p)} |"
    yield ""
    if command.epilog:
        lines = _unmarked(command.epilog).splitlines()
        yield from ("```text", *(line.removeprefix("  ") for line in lines if line != "Examples"), "```", "")


def _called(p: Any) -> str:
    if not p.opts[0].startswith("-"):
        return f"`{p.metavar or p.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in (*p.opts, *p.secondary_opts))
    return names if p.is_flag or not p.metavar else f"{names} `{p.metavar}`"


def _default(p: Any) -> str:
    if p.required:
        return "required"
    if p.is_flag if hasattr(p, "is_flag") else False:
        return "on" if p.default and p.secondary_opts else ""
    return "" if p.default is None or callable(p.default) else f"`{p.default}`"


def _escaped(text: str) -> str:
    """The text as Markdown, with pipes, stars and angle brackets escaped."""
    return re.sub(r"([|*<>])", r"\\\1", _unmarked(text.strip()))


def _unmarked(text: str) -> str:
    """The text without terminal markup."""
    return re.sub(r"\[/?(bold|italic|dim)\]", "", text)
