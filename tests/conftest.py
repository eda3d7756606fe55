"""Shared by all tests: the library must not need more than one thread, nor global seeds, and no rule may fail."""

import gc
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
os.environ["PARTIALFUSION_STRICT"] = "1"


def pytest_collection_finish() -> None:
    """What was imported stays: garbage collections, of which some tests ask for many, need not look at it again."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where the tests of devices run: pytest -m device --device cuda")
