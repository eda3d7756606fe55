"""Files of format 1 from an earlier version: they load bit for bit, and are written again in the same form.

The two files were written by partialfusion 0.1.0 from the networks below, which are exact on every machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import partialfusion as pf
from partialfusion.core.modules import named_tensors
from partialfusion.io.digest import state_digest
from partialfusion.io.header import RECORD
from partialfusion.io.storage import resave
from partialfusion.kernels.record import expanded

FOLDER = Path(__file__).parent
FUSED, PRUNED = FOLDER / "format1_fused.safetensors", FOLDER / "format1_pruned.safetensors"
files = pytest.mark.parametrize("path", [FUSED, PRUNED], ids=lambda path: path.stem)


def net(width: int, seed: int) -> nn.Module:
    """Numbers in eighths, which single precision holds exactly."""
    model = nn.Sequential(
        nn.Linear(3, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 2),
    ).eval()
    with torch.no_grad():
        for k, tensor in enumerate(t for t in named_tensors(model).values() if t.is_floating_point()):
            numbers = (torch.arange(tensor.numel()) * (7 + 2 * seed) + 5 * k) % 23
            tensor.copy_((numbers.view(tensor.shape) + 1) / 8)
    return model


SOURCES = {FUSED: lambda: [net(4, 0), net(5, 1)], PRUNED: lambda: [net(6, 0)]}
MODELS = {
    FUSED: "3e4cf20bd66ebe4660546e00cd88ebaf479ac93583cf66c376082f5e99865a80",
    PRUNED: "ab7150dafbfa243e967d64e5253cee55fd4a56811a47757a8d9890d8f4653242",
}
TEXTS = {
    FUSED: """\
Sequential: method=partial-ot, features=weights, site=pre, align=fixed-point, norm=analytic, convention=value, \
alpha={'0': 0.5, '3': 1.0}, keep=None, mix=[0.4, 0.6], seed=0, pruning=None, refit=0.0
space  width  fused  isolated    cost
-----  -----  -----  --------  ------
0          7      3     2 + 2  0.2071
3          9      0     4 + 5  0.2421
5          2      2     0 + 0       0
source 0: Sequential 99c625e00d1a2eaa6e729c3701c51cdab52209d82b05180c7d0ac6aec9d9d6f1
source 1: Sequential dadae7c3f001fc8255252da7b87b21725889bcfaf91933ed0c1b0902cd2812f5
stored as it was by partialfusion 0.1.0, torch 2.13.0+cpu""",
    PRUNED: """\
Sequential: method=cluster, features=weights, site=auto, align=greedy, norm=analytic, convention=value, \
alpha=None, keep=0.5, mix=[1.0], seed=0, \
pruning={'solver': 'ward', 'effort': 1.0, 'restarts': None, 'workers': None}, refit=0.0
space  width  fused  isolated    cost
-----  -----  -----  --------  ------
0          3      0         3  0.5508
3          3      0         3  0.4326
5          2      0         2       0
source 0: Sequential 0400bb81f90d21340432ea70457a65c9b13765daa527847e9e5e9eafa4d64be6
stored as it was by partialfusion 0.1.0, torch 2.13.0+cpu""",
}


@files
def test_loads_bit_for_bit(path: Path) -> None:
    assert state_digest(pf.load(path, into=net(7, 9))) == MODELS[path]


@files
def test_inspect_prints_the_same(path: Path) -> None:
    assert str(pf.inspect(path)) == TEXTS[path]


@files
def test_restores_with_its_sources(path: Path) -> None:
    restored = pf.restore(path, SOURCES[path](), torch.ones(2, 3))
    assert state_digest(restored.model) == MODELS[path]
    assert {name: r.width for name, r in restored.plan.items()} == {
        name: r.width for name, r in pf.load_plan(path).items()
    }


@files
def test_is_written_in_the_same_form(path: Path, tmp_path: Path) -> None:
    """The same record, except for the versions, and the same tensors."""
    resave(pf.inspect(path), pf.load(path, into=net(7, 9)), again := tmp_path / "again.safetensors")
    assert record(path) == record(again)
    before, after = safetensors.torch.load_file(path), safetensors.torch.load_file(again)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def record(path: Path) -> dict[str, Any]:
    """The record of a file without versions; compressed text is expanded, as compressors may differ."""
    with safetensors.safe_open(path, "pt") as file:
        found = json.loads(file.metadata()[RECORD])
    found["plan"]["arrays"] = expanded(found["plan"]["arrays"])
    found["layout"] = json.loads(expanded(found["layout"]))
    return {key: value for key, value in found.items() if key not in ("partialfusion", "torch")}
