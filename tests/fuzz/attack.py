"""One case of the attack: a changed file, read within limits of memory and time. Only the number of a case counts."""

from __future__ import annotations

import random
import shutil
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partialfusion.errors import FusionError

from .corpus import TARGETS, write
from .folders import FOLDER, mutations_of_lists
from .limits import measured
from .mutations import RESIGNED, mutations_of
from .target import Target


@dataclass(frozen=True)
class Case:
    """What was tried, and what came of it.

    Attributes:
        number: the seed of the case.
        target: the function and the kind of file.
        mutation: how the file was changed.
        outcome: "refused" or "read"; anything else is a finding, in words.
    """

    number: int
    target: str
    mutation: str
    outcome: str

    @property
    def finding(self) -> bool:
        return self.outcome not in ("refused", "read")


class Attack:
    """Cases by number, on a corpus in a folder."""

    def __init__(self, folder: Path) -> None:
        self.corpus, self.work = folder / "corpus", folder / "work"
        if not self.corpus.exists():
            self.corpus.mkdir(parents=True)
            write(self.corpus)
        shutil.copytree(self.corpus, self.work, dirs_exist_ok=True)
        self.expected = {t.name: t.read(self.work) for t in TARGETS}  # also imports and compiles what they need

    def run(self, number: int) -> Case:
        """Change a file or the folder that it is in, read it, and put everything back."""
        rng = random.Random(number)
        target = TARGETS[number % len(TARGETS)]
        valid = self.corpus / target.file
        ways, folders = mutations_of(valid), {}
        if valid.parent != self.corpus:
            ways, folders = ways | mutations_of_lists(valid), FOLDER
        mutation = rng.choice([*ways, *folders])
        path = self.work / target.file
        try:
            if mutation in folders:
                folders[mutation](path, rng)
            else:
                path.write_bytes(ways[mutation](valid.read_bytes(), rng))
            other = mutation in RESIGNED or (mutation in folders and "record" in ways)  # a digest that is right
            return Case(number, target.name, mutation, self._outcome(target, other))
        finally:
            self._put_back(target)

    def _put_back(self, target: Target) -> None:
        """The valid file; where it is in a folder, all of that."""
        folder = Path(target.file).parts[0]
        if folder == target.file:
            shutil.copyfile(self.corpus / folder, self.work / folder)
        else:
            shutil.rmtree(self.work / folder, ignore_errors=True)
            shutil.copytree(self.corpus / folder, self.work / folder)

    def _outcome(self, target: Target, resigned: bool) -> str:
        with measured() as cost:
            try:
                found = _read(target, self.work)
            except FusionError as error:
                outcome = "refused" if str(error) else f"{type(error).__name__} without a message"
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error} at {_place(error)}"[:400]
            else:
                same = found == self.expected[target.name]
                outcome = "read" if same or resigned or not target.guarded else "another result than was saved"
        return outcome if cost.small else f"{cost} ({outcome})"


def _read(target: Target, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return target.read(folder)


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "partialfusion" in f.filename]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno} {last.name}"
