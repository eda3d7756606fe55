"""Two large models with random weights, written and fused without ever being in memory whole.

    python -m benchmarks.large /tmp/large --shape gpt2-xl --alpha 0.2

writes two checkpoints in bfloat16, fuses them in a process of its own, prints its peak memory, processor and wall time,
and removes everything again, unless --keep is given.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-xl": ("GPT2LMHeadModel", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "gpt2": ("GPT2LMHeadModel", {}),
    "vocabulary": ("GPT2LMHeadModel", {"vocab_size": 100_000, "n_embd": 512, "n_layer": 2, "n_head": 8}),
    "llama-1b": (
        "LlamaForCausalLM",
        {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
    ),
}
NOISE = 0.1  # of the size of the weights, by which related models differ
SCALE = 0.02

RUN = """
import json, resource, sys, time
import partialfusion as pf
from benchmarks.large import allow_torchvision
allow_torchvision()
import partialfusion.streaming.fuse, transformers
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
wall, processor = time.monotonic(), time.process_time()
last = [wall, ""]
def progress(label, done):
    if time.monotonic() - last[0] > 10 or label.split()[0] != last[1]:
        last[:] = [time.monotonic(), label.split()[0]]
        print(f"{time.monotonic() - wall:7.0f} s {done:6.1%} {label}", file=sys.stderr, flush=True)
options = json.loads(sys.argv[1])
result = pf.fuse_files(**options, progress=progress)
print(json.dumps({
    "wall": time.monotonic() - wall,
    "processor": time.process_time() - processor,
    "before": before / 1e6,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    "sweeps": result.summary().sweeps,
    "ratio": result.fusion.count.ratio,
}))
"""


def allow_torchvision() -> None:
    """Define what torchvision, which transformers loads, registers kernels for: a CPU build of torch does not."""
    import torch

    for name in ("nms", "qnms"):
        if torch.version.cuda is None and not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def write(folder: Path, shape: str, seed: int, base: int | None, shard: int, **more: Any) -> None:
    """Write a checkpoint with random weights; with a base, those of another seed and some noise. Other fields of the
    config may be given."""
    import torch

    allow_torchvision()
    import transformers

    from partialfusion.core.modules import named_tensors
    from partialfusion.io.files import replacing, write_tensors
    from partialfusion.streaming.skeleton import Skeleton

    kind, fields = SHAPES[shape]
    model_class: Any = getattr(transformers, kind)
    config = model_class.config_class(**fields, **more, dtype="bfloat16", architectures=[kind])
    skeleton = Skeleton.of(lambda: model_class(config))
    names = sorted(skeleton.state_names)
    tensors = {n: t.to(torch.bfloat16) for n, t in named_tensors(skeleton.model).items() if n in names}
    order = {name: k for k, name in enumerate(names)}

    def drawn(name: str, which: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * which + order[name])
        return SCALE * torch.randn(tensors[name].shape, generator=generator)

    def content(name: str) -> list[torch.Tensor]:
        own = drawn(name, seed)
        found = own if base is None else drawn(name, base) + NOISE * own
        return [(found + (1.0 if tensors[name].dim() == 1 and name.endswith("weight") else 0.0)).to(torch.bfloat16)]

    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    parts: list[list[str]] = [[]]
    size = 0
    for name in names:
        own = tensors[name].numel() * 2
        if parts[-1] and size + own > shard:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += own
    files = {f"model-{k + 1:05d}-of-{len(parts):05d}.safetensors": part for k, part in enumerate(parts)}
    for file, part in files.items():
        with replacing(folder / file) as opened:
            write_tensors(opened, {n: tensors[n] for n in part}, {"format": "pt"}, content)
    places = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2-xl")
    parser.add_argument("--alpha", type=float, default=0.2)
    parser.add_argument("--align", default="fixed-point")
    parser.add_argument("--method", default="partial-ot")
    parser.add_argument("--related", action="store_true", help="the second model is the first with noise")
    parser.add_argument("--shard", type=int, default=10**9)
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    names = [given.folder / "a", given.folder / ("related" if given.related else "b")]
    for k, folder in enumerate(names):
        if not folder.exists():
            write(folder, given.shape, k, 0 if given.related and k else None, given.shard)
    out = given.folder / "fused"
    shutil.rmtree(out, ignore_errors=True)
    options = {
        "directories": list(map(str, names)),
        "out": str(out),
        "alpha": given.alpha,
        "align": given.align,
        "method": given.method,
        "shard_size": given.shard,
    }
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(options)], stdout=subprocess.PIPE, text=True, check=True, env=os.environ
    )
    figures = json.loads(done.stdout)
    size = sum(p.stat().st_size for p in out.iterdir())
    print(
        f"{given.shape}, alpha={given.alpha:g}, {given.align}: {figures['processor']:.0f} s of processor time, "
        f"{figures['wall']:.0f} s by the clock ({time.monotonic() - started:.0f} s with imports), peak "
        f"{figures['peak']:.2f} GB resident ({figures['before']:.2f} GB before), {figures['sweeps']} sweeps, "
        f"{figures['ratio']:.2f}× one model's parameters, {size / 1e9:.2f} GB written"
    )
    if not given.keep:
        shutil.rmtree(given.folder)


if __name__ == "__main__":
    main()
