"""The source of Python's standard library, of the interpreter that runs."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from partialfusion.errors import DataError

WITHOUT = {  # folders: installed packages, tests, tables of character sets, the text of the manual
    *("site-packages", "dist-packages", "lib-dynload", "test", "tests", "idle_test", "encodings", "pydoc_data"),
}
GENERATED = ("_sysconfigdata", "config-")  # differ between machines


def files(folder: Path | None = None) -> dict[str, bytes]:
    """Every module's path and source; tests, tables, and what is generated for a machine are left out."""
    root = folder or Path(sysconfig.get_path("stdlib"))
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not WITHOUT.intersection(parts) and not any(part.startswith(GENERATED) for part in parts):
            found["/".join(parts)] = path.read_bytes()
    if not found:
        raise DataError(f"the standard library of this Python has no source in {root}; run another interpreter")
    return found
