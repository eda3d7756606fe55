"""The page of transformers: the zoo of the tests, and one small model of every family of timm."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tests.transformer import conformance as check
from tests.transformer.conformance import CONFESSION, NOT_EXACT, TOLERANCE, Case, Traced
from tests.transformer.descriptions import FAMILIES
from tests.transformer.families import MEMBERS, NOT_BUILT, WHY_NOT
from tests.transformer.needs import allow_torchvision
from tests.transformer.twins import Family
from tests.transformer.zoo import ZOO, Entry

PAGE = Path(__file__).parents[2] / "docs" / "transformers.md"
PATIENCE = 5.0  # CPU seconds that tracing a model of the zoo may take
LIMIT = 180.0  # CPU seconds that all checks of a model may take
FAILED = "FAILED"

INTRODUCTION = """# Transformers

Written by `python -m tests.catalogue`: {version}, {cores} processes of one thread,
{minutes:.0f} minutes. Every parameter and every statistic is random, so that no branch that starts at zero hides a
mistake. Every deviation is the largest difference of the logits relative to the largest logit, in single precision for
the tiny models and in double precision for those of timm's families, where rounding alone can reach 2e-4:

- *trace*: CPU seconds for the blueprint with its checks;
- *ensemble*: alpha = 1 with shares 0.3 and 0.7 is compared with the mix of the logits;
- *itself*: the model is fused with itself at alpha = 0;
- *twin*: the model is fused at alpha = 0 with a copy whose stream, heads, channels within heads and MLPs were reordered
  by hand, matched by weights and by activations; the larger deviation is shown;
- *directions*: with `similarity="rotation"` the model is fused with itself and with a reordered copy whose heads were
  rotated by hand, too, at alpha = 0, and two models are rotated and then kept apart, which is the ensemble; the largest
  deviation is shown;
- *pruned*: half of every elastic space is kept; the result has fewer heads and a narrower stream, runs, and has so many
  parameters relative to the whole.

*Elastic parameters* is the fraction of the parameters with an axis in an elastic space.

Tiny models of {zoo} kinds, two layers of width 64 in most: alpha = 1 is the ensemble to {tolerance:.0e} in {exact} of
them. Where it is not, `fuse` refuses, unless `allow_shortfall=True` accepts it.
"""

TIMM = """## One model of every family of timm

timm has {families} families; {built} are built here, a small member of each, smaller still where its arguments allow
it. alpha = 1 is the ensemble to {tolerance:.0e} in {exact} of {built} ({share:.1%}).
EdgeNeXt has widths here that its parts divide; at timm's own widths, where 88 channels are cut into three parts of
uneven size, it is not the ensemble.
"""


WITHOUT_FAMILIES = """## Families of timm

This page was written without the families of timm; `python -m tests.catalogue transformers` adds one small model of
each, with the reason for each that is not exact."""


@dataclass
class Row:
    """A line of the page. A check that fails says so; a model that cannot be traced has no checks."""

    name: str
    traced: Traced | None = None
    checks: dict[str, str] = field(default_factory=dict)
    why: str = ""

    @property
    def exact(self) -> bool:
        ensemble = self.checks.get("ensemble", FAILED)
        return not ensemble.startswith((FAILED, CONFESSION))

    @property
    def failing(self) -> bool:
        return self.traced is None or any(text.startswith(FAILED) for text in self.checks.values())


CHECKS = ["ensemble", "itself", "twin", "directions", "pruned"]


def show(names: list[str]) -> list[str]:
    """Prints the lines of some models of the zoo, and writes no page; gives the names of those that fail."""
    rows, _ = _rows(names, [])
    print(_table(rows, CHECKS))
    return [r.name for r in rows if r.failing]


def main(*, families_too: bool = True) -> list[str]:
    """Writes the page; gives the names of the models that fail."""
    start = time.perf_counter()
    zoo, families = _rows(list(ZOO), list(MEMBERS) if families_too else [])
    parts = [_introduction(zoo, start), _table(zoo, CHECKS), ""]
    parts.append(_families(families) if families_too else WITHOUT_FAMILIES)
    PAGE.write_text("\n".join(parts) + "\n")
    failed = [r.name for r in zoo if r.failing] + [f"timm's {r.name}" for r in families if r.failing]
    slow = [f"{r.name} (slow)" for r in zoo if r.traced is not None and r.traced.seconds > PATIENCE]
    return failed + slow


def zoo_row(name: str) -> Row:
    """All checks of a model of the zoo."""
    case, family = Case(ZOO[name]), FAMILIES[name]
    return _row(
        name,
        case,
        {
            "ensemble": lambda: _ensemble(case),
            "itself": lambda: _verdict(check.itself(case)),
            "twin": lambda: _verdict(max(check.twin(case, family, data=data) for data in (False, True))),
            "directions": lambda: _verdict(max(check.rotated(case, family).values())),
            "pruned": lambda: _pruned(case, family),
            "used": lambda: _used(case),
            "sources": lambda: _untouched(case),
        },
        NOT_EXACT.get(name, ""),
    )


def family_row(name: str) -> Row:
    """The ensemble, for one member of a family of timm."""
    entry: Entry = MEMBERS[name].entry(name)
    case = Case(entry)
    checks = {"ensemble": lambda: _ensemble(case), "sources": lambda: _untouched(case)}
    return _row(name, case, checks, WHY_NOT.get(name, ""))


class OutOfTimeError(BaseException):
    """Not an Exception, so that no search that tries one thing after the other takes it for a failed trial."""


def guarded(kind: str, name: str) -> Row:
    """A row that cannot be made, or takes too long, is listed as failing."""

    def stop(*signal_and_frame: object) -> None:
        raise OutOfTimeError(f"not done after {LIMIT:.0f} CPU seconds")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        return zoo_row(name) if kind == "zoo" else family_row(name)
    except (Exception, OutOfTimeError) as error:
        return Row(name, why=_told(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def one_thread() -> None:
    torch.set_num_threads(1)
    allow_torchvision()


def _row(name: str, case: Case, checks: dict[str, Callable[[], str]], why: str) -> Row:
    try:
        traced = check.tracing(case)
    except Exception as error:
        return Row(name, why=_told(error))
    row = Row(name, traced, why=why)
    for what, run in checks.items():
        try:
            row.checks[what] = run()
        except Exception as error:
            row.checks[what] = _told(error)
    return row


def _rows(zoo: list[str], families: list[str]) -> tuple[list[Row], list[Row]]:
    """One process a core."""
    found: dict[tuple[str, str], Row] = {}
    context = multiprocessing.get_context("spawn")
    workers = os.cpu_count()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=one_thread) as pool:
        waiting = {pool.submit(guarded, "zoo", name): ("zoo", name) for name in zoo}
        waiting |= {pool.submit(guarded, "family", name): ("family", name) for name in families}
        for done in as_completed(waiting):
            row = found[waiting[done]] = done.result()
            print(f"{row.name}: {row.traced and f'{row.traced.seconds:.1f} s'} {row.checks} {row.why}", flush=True)
    return [found["zoo", name] for name in zoo], [found["family", name] for name in families]


def _ensemble(case: Case) -> str:
    gap = check.ensemble(case)
    if gap <= TOLERANCE:
        return f"{gap:.0e}"
    if check.confessed(case) == (True, True):
        return f"{CONFESSION}, and says so ({gap:.0e})"
    return f"{FAILED}: {gap:.0e}, and does not say so"


def _verdict(gap: float) -> str:
    return f"{gap:.0e}" if gap <= TOLERANCE else f"{FAILED}: {gap:.0e}"


def _pruned(case: Case, family: Family) -> str:
    found = check.pruned(case, family)
    if found.stiff or not found.runs:
        return f"{FAILED}: {', '.join(found.stiff) or 'it does not run'}"
    return f"{found.ratio:.2f}×"


def _used(case: Case) -> str:
    """Saved and loaded, as directories of Hugging Face, and trained."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = [] if check.stored(case, Path(folder)) else ["a file gives another model"]
        if case.entry.package == "transformers":
            wrong += check.pretrained(case, Path(folder))
    wrong += check.trains(case)
    return f"{FAILED}: {', '.join(wrong)}" if wrong else "yes"


def _untouched(case: Case) -> str:
    return f"{FAILED}: {', '.join(case.untouched()[:3])}" if case.untouched() else "untouched"


def _told(error: BaseException) -> str:
    """An error on one line of a table."""
    words = " ".join(str(error).split()).replace("|", "/")
    return f"{FAILED}: {type(error).__name__}: {words[:100]}"


def _introduction(rows: list[Row], start: float) -> str:
    return INTRODUCTION.format(
        version=_versions(),
        cores=os.cpu_count(),
        minutes=(time.perf_counter() - start) / 60,
        zoo=len(rows),
        tolerance=TOLERANCE,
        exact=sum(r.exact for r in rows),
    )


def _versions() -> str:
    allow_torchvision()
    import timm
    import torchvision
    import transformers

    packages = (torch, torchvision, timm, transformers)
    return ", ".join(f"{package.__name__} {package.__version__}" for package in packages)


def _families(rows: list[Row]) -> str:
    exact = sum(r.exact for r in rows)
    text = TIMM.format(
        families=len(rows) + len(NOT_BUILT),
        built=len(rows),
        tolerance=TOLERANCE,
        exact=exact,
        share=exact / max(1, len(rows)),
    )
    absent = [f"- {name}: {why}" for name, why in NOT_BUILT.items()]
    left_out = ["", "Not built:", "", *absent] if absent else []
    return "\n".join([text, _table(rows, ["ensemble"], {n: m.described() for n, m in MEMBERS.items()}), *left_out])


def _table(rows: list[Row], checks: list[str], members: dict[str, str] | None = None) -> str:
    heads = ["family", "model"] if members else ["model"]
    heads += ["elastic", "permutable", "rigid", "elastic parameters", "trace", *checks, "why not"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in rows:
        names = [row.name, members[row.name]] if members else [row.name]
        lines.append(f"| {' | '.join(names + _cells(row, checks))} |")
    return "\n".join(lines)


def _cells(row: Row, checks: list[str]) -> list[str]:
    found = row.traced
    if found is None:
        return ["", "", "", "", "", *("" for _ in checks), row.why]
    unknown = f"**no rule for {', '.join(found.unknown)}** " if found.unknown else ""
    return [
        *(str(found.kinds[kind]) for kind in ("elastic", "permutable", "rigid")),
        f"{found.elastic_share:.0%}",
        f"{found.seconds:.1f} s",
        *(row.checks.get(name, "") for name in checks),
        unknown + "; ".join(filter(None, [row.why, found.why])),
    ]
