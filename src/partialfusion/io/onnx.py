"""Export to ONNX: a file is run and compared with PyTorch before it replaces what was there."""

from __future__ import annotations

import importlib
import io
import os
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..core.alone import alone
from ..core.inputs import Inputs
from ..core.modules import at_rest, first_line, without_cache
from ..core.scalars import check_flag
from ..errors import CheckpointError, OptionError, TraceError, VerificationError
from ..fusing.result import Fusion
from ..surgery.verify import TOLERANCE, deviation
from .files import StrPath, check_target, destination
from .temporary import claimed

SUFFIX = ".onnx"


@alone
def export_onnx(
    model: nn.Module | Fusion,
    example_inputs: Any,
    path: StrPath,
    *,
    check: bool = True,
    dynamic_batch: bool = True,
) -> Path:
    """Write a model in evaluation mode as an ONNX file, completely or not at all.

    The file is first written to a temporary place, run with onnxruntime and compared with PyTorch, on the example
    inputs and on random batches of other sizes; only then does it replace what was there. Weights beyond two gigabytes
    go into a second file, `path` with `.data` added, as the format requires.

    Args:
        model: what `fuse` or `prune` returned, or any module that torch.export can trace, such as what `to_blocks`
            returns; its mode and weights are not changed.
        example_inputs: a tensor, a tuple of positional inputs, or a mapping of keyword inputs.
        path: the file to write; its name ends in .onnx.
        check: run the file and compare; a difference raises VerificationError and nothing is written.
        dynamic_batch: let the batch size vary; the batch axis is the first axis of every input whose first axis is as
            long as that of the first input.

    Returns:
        The path.
    """
    check, dynamic_batch = check_flag(check, "check"), check_flag(dynamic_batch, "dynamic_batch")
    if isinstance(model, Fusion):
        model = model.model
    if not isinstance(model, nn.Module):
        raise OptionError(f"the model is a {type(model).__name__}: pass what fuse or prune returned, or a module")
    target = destination(check_target(path, suffixes=(SUFFIX,)))
    destination(target.with_name(f"{target.name}.data"))
    for package in ("onnx", "onnxscript", *(["onnxruntime"] if check else [])):
        _import(package)
    inputs = Inputs.of(example_inputs)
    batch = _batch(inputs) if dynamic_batch else None
    program = _program(model, inputs, batch)
    others = [] if batch is None else [_resampled(inputs, batch, n) for n in (1, batch + 1)]
    try:
        with claimed(target, folder=True) as folder:
            written = folder / target.name
            program.save(written)
            if check:
                _compare(model, written, [inputs, *others])
            for file in sorted(folder.iterdir(), key=lambda f: f == written):  # first the weights it refers to
                os.replace(file, target.parent / file.name)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {first_line(error)}; choose another output file") from error
    return Path(path)


def _program(model: nn.Module, inputs: Inputs, batch: int | None) -> Any:
    """The ONNX program. PyTorch takes a batch size of one for a constant, so it is traced with two samples."""
    shapes = None
    if batch is not None:
        dim = torch.export.Dim("batch")
        dims = inputs.map(lambda x: {0: dim} if _in_batch(x, batch) else None)
        shapes = dims.kwargs or dims.args
        inputs = inputs if batch > 1 else _resampled(inputs, batch, 2)
    quiet = io.StringIO()
    try:
        with at_rest(model), without_cache(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with redirect_stdout(quiet), redirect_stderr(quiet):
                exported = _exported(model, inputs.on_device_of(model), shapes)
                return torch.onnx.export(exported, dynamo=True, verbose=False)
    except Exception as error:
        hint = "; if the batch size is fixed, pass dynamic_batch=False" if batch is not None else ""
        raise TraceError(f"{type(model).__name__} cannot be exported to ONNX: {first_line(error)}{hint}") from error


def _exported(model: nn.Module, inputs: Inputs, shapes: Any) -> torch.export.ExportedProgram:
    """Non-strict export takes len(x) for a constant; strict export does not, but supports less of Python."""
    try:
        return torch.export.export(model, inputs.args, dict(inputs.kwargs), dynamic_shapes=shapes, strict=False)
    except Exception:
        if shapes is None:
            raise
        return torch.export.export(model, inputs.args, dict(inputs.kwargs), dynamic_shapes=shapes, strict=True)


def _compare(model: nn.Module, file: Path, trials: list[Inputs]) -> None:
    """Compare the outputs of onnxruntime with those of PyTorch."""
    for inputs in trials:
        sizes = [tuple(x.shape) for x in inputs.tensors]
        try:
            with at_rest(model):
                expected = [t for t in tree_leaves(inputs.call(model)) if isinstance(t, Tensor)]
            found = _run_file(file, inputs)
        except Exception as error:
            raise VerificationError(
                f"{type(model).__name__} does not run in both PyTorch and onnxruntime on inputs of shapes {sizes}: "
                f"{first_line(error)}; nothing was written. Pass dynamic_batch=False if the batch size is fixed, or "
                "check=False to write the file anyway"
            ) from error
        if len(found) != len(expected):
            raise VerificationError(
                f"the ONNX file has {len(found)} outputs and the model {len(expected)}; nothing was written. Pass "
                "check=False to write the file anyway"
            )
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            gap = deviation(a, b.cpu()) if a.shape == b.shape else float("inf")
            if gap > TOLERANCE.get(b.dtype, 1e-4):
                raise VerificationError(
                    f"output {k} of the ONNX file differs from PyTorch's by {gap:.2g} of its largest entry, shapes "
                    f"{tuple(a.shape)} and {tuple(b.shape)}, on inputs of shapes {sizes}; nothing was written"
                )


def _run_file(file: Path, inputs: Inputs) -> list[Tensor]:
    """The outputs of the file; it has the keyword inputs of the model under their names, in an order of its own."""
    runtime = _import("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    named = dict(inputs.kwargs) if {*names} == {*inputs.kwargs} else dict(zip(names, inputs.tensors, strict=True))
    feeds = {name: x.detach().cpu().numpy() for name, x in named.items()}
    return [torch.as_tensor(output) for output in session.run(None, feeds)]


def _batch(inputs: Inputs) -> int | None:
    """The batch size: the length of the first axis of the first tensor that has one."""
    return next((x.shape[0] for x in inputs.tensors if x.dim() > 0), None)


def _in_batch(value: Any, batch: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == batch


def _resampled(inputs: Inputs, batch: int, length: int) -> Inputs:
    """Inputs with another batch size: random if they are floating-point, else repeated rows of the example."""
    generator = torch.Generator("cpu").manual_seed(length)

    def resample(value: Any) -> Any:
        if not _in_batch(value, batch):
            return value
        if value.is_floating_point():
            return torch.randn((length, *value.shape[1:]), generator=generator, device="cpu").to(value)
        return value[torch.arange(length, device=value.device) % batch]

    return inputs.map(resample)


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise OptionError(
            f"exporting to ONNX needs {package}, which is not installed: pip install 'partialfusion[onnx]'"
        ) from error
