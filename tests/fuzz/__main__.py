"""`python -m fuzz`, in the folder of the tests: many cases in several processes, and a table of what they came to."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from queue import Empty, SimpleQueue

from .attack import Attack, Case
from .kills import kill_saves, kill_streams, kill_study

START = 600.0  # seconds for a process to import PyTorch and write the valid files
PATIENCE = 60.0  # seconds without a word from a process, after which it hangs


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="how many cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument(
        "--kills", type=int, default=60, help="how many kills of pf.save and of a study; of pf.fuse_files a third"
    )
    parser.add_argument("--workers", type=int, default=2, help="how many processes")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable()
    if options.serve:
        serve(Path(options.serve))
        return
    started = time.monotonic()
    cases = attacked(range(options.first, options.first + options.cases), options.workers)
    print(report(cases, time.monotonic() - started), flush=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        kills = []
        for kill, count in (
            (kill_saves, options.kills),
            (kill_study, options.kills),
            (kill_streams, options.kills // 3),
        ):
            kills.append(kill(Path(folder) / kill.__name__, count))
            print("\n".join([str(kills[-1]), *kills[-1].findings]), flush=True)
    sys.exit(
        len(cases) < options.cases or any(case.finding for case in cases) or any(found.findings for found in kills)
    )


def serve(folder: Path) -> None:
    """Run the cases whose numbers come from stdin, and write what they came to."""
    import torch

    torch.set_num_threads(1)
    attack = Attack(folder)
    print("ready", flush=True)
    for line in sys.stdin:
        case = attack.run(int(line))
        print(json.dumps([case.number, case.target, case.mutation, case.outcome]), flush=True)


def attacked(numbers: range, workers: int) -> list[Case]:
    """Run cases in processes; one that ends or hangs is a finding, and another takes its place."""
    left: SimpleQueue[int] = SimpleQueue()
    for number in numbers:
        left.put(number)
    found: list[Case] = []
    threads = [threading.Thread(target=_supervise, args=(left, found)) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found, key=lambda case: case.number)


def _supervise(left: SimpleQueue[int], found: list[Case]) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        worker = _Worker(folder)
        while True:
            try:
                number = left.get_nowait()
            except Empty:
                worker.end()
                return
            case = worker.run(number)
            found.append(case)
            if case.finding:
                print(f"case {case.number}, {case.target}, {case.mutation}: {case.outcome}", file=sys.stderr)
            if worker.gone:
                worker = _Worker(folder)


class _Worker:
    def __init__(self, folder: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuzz", "--serve", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.gone = False
        assert self._line(START) == "ready"

    def run(self, number: int) -> Case:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        line = self._line()
        if line.startswith("["):
            return Case(*json.loads(line))
        self.gone = True
        self.process.kill()
        return Case(number, "?", "?", f"the process ended with {self.process.wait()}, or did not answer")

    def _line(self, patience: float = PATIENCE) -> str:
        """The next line of the process; an empty one if it ends, or is killed because it hangs."""
        assert self.process.stdout is not None
        clock = threading.Timer(patience, self.process.kill)
        clock.start()
        try:
            return self.process.stdout.readline().strip()
        finally:
            clock.cancel()

    def end(self) -> None:
        self.process.communicate()


def report(cases: list[Case], seconds: float) -> str:
    """A line for each kind of file and mutation, and the sum."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for case in cases:
        kind = "finding" if case.finding else case.outcome
        counts.setdefault((case.target, case.mutation), Counter())[kind] += 1
    names = ("refused", "read", "finding")
    lines = [f"{'target':<28}{'mutation':<10}{'refused':>9}{'read':>9}{'findings':>9}"]
    for (target, mutation), count in sorted(counts.items()):
        lines.append(f"{target:<28}{mutation:<10}" + "".join(f"{count[name]:>9}" for name in names))
    total = sum((count for count in counts.values()), Counter())
    lines.append(
        f"{len(cases)} cases in {seconds:.0f} s: " + ", ".join(f"{total[name]} {name}" for name in names) + "s"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
