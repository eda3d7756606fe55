"""Runs the catalogue and writes its pages: python -m tests.catalogue [torchvision] [transformers]

`python -m tests.catalogue transformers vit llama` runs the checks of these models of the zoo and prints their lines.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

import partialfusion as pf

from . import transformers
from .conformance import Row, guarded, one_thread
from .models import NAMES, build, images, randomise, representative

PAGE = Path(__file__).parents[2] / "docs" / "catalogue.md"
INTRODUCTION = """# torchvision's classification models

Written by `make catalogue`: {version}, {cores} processes of one thread, {minutes:.0f} minutes. Times are those of one
busy core; a trace exports the model twice, the second time widened, for its check.

All {count} models are traced, the convolutional ones on the meta device. In {traced} of {count} every operation has a
rule, and the widened model traces to the same spaces. Numerical checks run on the smallest member of each family, with
random weights, biases and batch-norm statistics, on images of 64×64 (Inception 96, MaxViT 224). Every number is the
largest deviation of the logits relative to the largest logit:

- *reordered*: the channels of every space that is not rigid are put in a random order;
- *itself*: the network is fused with itself at alpha = 0.25 and shares 0.3 and 0.7, with greedy alignment;
- *twin*: the network is fused with a reordered copy of itself at alpha = 0;
- *ensemble*: alpha = 1 is compared with the mean of the logits, unless some parameters can only be averaged; where the
  network ends in a non-linearity the models are mixed before it, and the difference is shown but not judged;
- *halved*: a random half of every elastic space, at least two units, is kept; the result runs and has the predicted
  number of parameters, shown relative to the whole network;
- *use*: the network fused with itself at alpha = 0.25 trains for one step, its state dict loads into a copy, it
  compiles (`torch.compile`, backend `aot_eager`), and its ONNX file gives the same logits in onnxruntime.

*Elastic parameters* is the fraction of the parameters with an axis in an elastic space. GoogLeNet and Inception are
built without their auxiliary heads, which are used only in training.

Models of more than 100 million parameters that cannot be traced on the meta device are traced without the check; the
smallest member of their family is checked. Fusing two random ResNet-50 takes {resnet50:.0f} s on two threads at
alpha = 0.4 with weight features and fixed-point alignment, without tracing.
"""


def main() -> None:
    """Both pages, or those that are named, or some transformers; the exit code tells of failures."""
    pages = {"torchvision": torchvision, "transformers": transformers.main, "zoo": zoo}
    chosen = sys.argv[1:] or ["torchvision", "transformers"]
    some = chosen[1:]
    if chosen[0] == "transformers" and some and set(some) <= set(transformers.ZOO):
        failed = transformers.show(some)
        raise SystemExit(f"failing: {', '.join(failed)}" if failed else 0)
    if unknown := [name for name in chosen if name not in pages]:
        raise SystemExit(f"no page {', '.join(unknown)}; there are {', '.join(pages)}")
    failed = [name for page in chosen for name in pages[page]()]
    raise SystemExit(f"failing: {', '.join(failed)}" if failed else 0)


def zoo() -> list[str]:
    """The page of transformers without the families of timm: a few minutes."""
    return transformers.main(families_too=False)


def torchvision() -> list[str]:
    """Rows in one process a core, largest work first."""
    start = time.perf_counter()
    smallest = [name for name in NAMES if representative(name) == name]
    rows: dict[str, Row] = {}
    numbers: dict[str, Row] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context, initializer=one_thread) as pool:
        waiting = {pool.submit(guarded, "numbers", name): (numbers, name) for name in smallest}
        waiting |= {pool.submit(guarded, "trace", name): (rows, name) for name in NAMES}
        for done in as_completed(waiting):
            table, name = waiting[done]
            table[name] = done.result()
            print(f"{name}: {dict(table[name].kinds)} {table[name].seconds:.1f} s {table[name].checks}", flush=True)
    return write([rows[name] for name in NAMES], [numbers[name] for name in smallest], start)


def write(rows: list[Row], numbers: list[Row], start: float) -> list[str]:
    """The page, and which models fail."""
    seconds = fuse_resnet50()
    text = INTRODUCTION.format(
        version=f"torch {torch.__version__}",
        cores=os.cpu_count(),
        minutes=(time.perf_counter() - start) / 60,
        count=len(rows),
        traced=sum(r.traced for r in rows),
        resnet50=seconds,
    )
    PAGE.write_text("\n".join([text, _models(rows), "", _numbers(numbers)]) + "\n")
    failed = [r.name for r in numbers if r.unknown or any(c.startswith("FAILED") for c in r.checks.values())]
    return failed + [r.name for r in rows if not r.traced]


def fuse_resnet50() -> float:
    models, x = [randomise(build("resnet50"), s) for s in (0, 1)], images("resnet50")
    blueprint = pf.trace(models[1], x)
    start = time.perf_counter()
    pf.fuse(models, x, alpha=0.4, features="weights", blueprint=blueprint)
    return time.perf_counter() - start


def _models(rows: list[Row]) -> str:
    lines = [
        "## All models",
        "",
        "| model | elastic | permutable | rigid | elastic parameters | trace | why not elastic |",
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for r in rows:
        why = f"**no rule for {r.unknown}** {r.why}" if r.unknown else r.why
        counts = " | ".join(str(r.kinds[k]) for k in ("elastic", "permutable", "rigid"))
        lines.append(f"| {r.name} | {counts} | {r.elastic_share:.0%} | {r.seconds:.1f} s | {why} |")
    return "\n".join(lines)


def _numbers(rows: list[Row]) -> str:
    names = ("reordered", "itself", "twin", "ensemble", "halved", "use")
    lines = ["## Numerical checks", "", f"| model | trace with checks | {' | '.join(names)} |", "| --- " * 8 + "|"]
    for r in rows:
        lines.append(f"| {r.name} | {r.seconds:.1f} s | {' | '.join(r.checks.get(n, r.unknown) for n in names)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
