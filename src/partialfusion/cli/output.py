"""How results are printed: records for --json, a summary and Python code that loads the file otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .terminal import print_json

if TYPE_CHECKING:
    from ..blueprint import Blueprint
    from ..fusing.result import Fusion


def show_fusion(
    result: Fusion,
    factory: str,
    out: Path,
    *,
    budget: Mapping[str, float | int] | None = None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print a result that has been written to a file."""
    if as_json:
        print_json(fusion_record(result, out, budget))
    elif not quiet:
        typer.echo(str(result.summary()))
        if result.mixing is not None:
            typer.echo(f"\n{result.mixing}")
        if budget is not None:
            typer.echo(f"budget: {', '.join(f'{name} {bound:g}' for name, bound in budget.items())}")
        typer.echo(f"\nwrote {out}; to load it in Python, with the widths of the result:\n")
        typer.echo(loading_code(factory, out))


def fusion_record(fusion: Fusion, out: Path, budget: Mapping[str, float | int] | None = None) -> dict[str, Any]:
    """A result's summary as plain values, with its budget and how its mix was chosen."""
    return {
        "out": str(out),
        **asdict(fusion.summary()),
        "ratio": fusion.count.ratio,
        "effective_ratio": fusion.count.effective_ratio,
        "budget": None if budget is None else dict(budget),
        "mixing": None if fusion.mixing is None else asdict(fusion.mixing),
    }


def blueprint_record(blueprint: Blueprint) -> dict[str, Any]:
    """A blueprint as plain values."""
    spaces = [
        {
            "name": s.name,
            "width": s.width,
            "kind": s.kind,
            "reasons": list(s.reasons),
            "bindings": [
                {"parameter": b.parameter, "axis": b.axis, "role": b.role, "multiplicity": b.index.shape[1]}
                for b in s.bindings
            ],
        }
        for s in blueprint
    ]
    return {"spaces": spaces, "unknown": dict(blueprint.unknown or {}), "checked": blueprint.checked}


def loading_code(factory: str, out: Path) -> str:
    """Python code that loads a fused file."""
    from ..io.factories import as_python

    imported, built = as_python(factory)
    if out.suffix == ".safetensors":
        use, call = "import partialfusion as pf", f"pf.load({str(out)!r}, into={built})"
    else:
        use, call = "from partialfusion.io.checkpoints import load_fused", f"load_fused({built}, {str(out)!r})"
    return f"    {use}\n    {imported}\n\n    model = {call}"
