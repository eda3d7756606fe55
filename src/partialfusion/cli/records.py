"""Results as plain values for machines, and lines of Python for people to go on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..blueprint import Blueprint
    from ..fusing.result import Fusion


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


def fusion_record(fusion: Fusion, out: Path, budget: Mapping[str, float | int] | None = None) -> dict[str, Any]:
    """A result's summary as plain values, with the bounds it was made for and how its mix was found."""
    return {
        "out": str(out),
        **asdict(fusion.summary()),
        "ratio": fusion.count.ratio,
        "budget": None if budget is None else dict(budget),
        "mixing": None if fusion.mixing is None else asdict(fusion.mixing),
    }


def loading_lines(factory: str, out: Path) -> str:
    """Python that loads a fused file."""
    from ..io.factories import as_python

    imported, built = as_python(factory)
    if out.suffix == ".safetensors":
        use, call = "import partialfusion as pf", f"pf.load({str(out)!r}, into={built})"
    else:
        use, call = "from partialfusion.io.checkpoints import load_fused", f"load_fused({built}, {str(out)!r})"
    return f"    {use}\n    {imported}\n\n    model = {call}"
