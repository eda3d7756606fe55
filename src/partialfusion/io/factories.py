"""Models built from text: package.module:factory, timm:NAME, torchvision:NAME or hf:DIR, arguments after commas."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import nn

from ..core.modules import first_line
from ..errors import FusionError, OptionError
from .hf import class_name
from .pretrained import build_directory

CATALOGUES = {"timm": "timm.create_model", "torchvision": "torchvision.models.get_model"}

DIRECTORY = "hf"  # a local directory of Hugging Face's

NAMING = {
    "factory": "name a function or class that returns the model, as package.module:factory, such as "
    "torchvision.models:resnet18, or as timm:NAME, torchvision:NAME or hf:DIR",
    "evaluate": "name a function that takes a model and returns a number, as package.module:function",
}


@dataclass(frozen=True)
class Spec:
    """The specification of a factory, or of a function that evaluates models.

    Attributes:
        text: what the user wrote.
        module: the module, or the catalogue.
        attribute: the name in the module, with dots for nested names.
        arguments: keyword arguments of the call.
        what: the kind of function, "factory" or "evaluate".
    """

    text: str
    module: str
    attribute: str
    arguments: dict[str, Any] = field(default_factory=dict)
    what: str = "factory"

    @property
    def called(self) -> str:
        """The name of the function in messages."""
        return f"{self.what} {self.text!r}"

    @classmethod
    def of(cls, text: str, *, what: str = "factory") -> Spec:
        module, _, rest = text.partition(":")
        attribute, comma, arguments = rest.partition(",")
        if not module or not attribute:
            raise OptionError(f"{what} {text!r}: {NAMING[what]}")
        return cls(text, module, attribute, _arguments(arguments, f"{what} {text!r}") if comma else {}, what)


def _arguments(text: str, called: str) -> dict[str, Any]:
    """Keyword arguments from text such as width=8,act=relu; words without quotes are strings."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        return {
            str(k.arg): k.value.id if isinstance(k.value, ast.Name) else ast.literal_eval(k.value)
            for k in call.keywords
        }
    except (ValueError, SyntaxError, AssertionError):
        raise OptionError(
            f"{called}: {text!r} are not arguments; write NAME=VALUE, separated by commas, such as "
            "timm:resnet18,num_classes=10"
        ) from None


def load_factory(text: str) -> Callable[[], object]:
    """The callable that a text names, with its arguments bound; modules in the current folder are found too."""
    spec = Spec.of(text)
    if spec.module == DIRECTORY:
        return partial(build_directory, spec.attribute, spec.arguments)
    found = _of_catalogue(spec) if spec.module in CATALOGUES else _of_module(spec)
    return partial(found, **spec.arguments) if spec.arguments else found


def build(text: str, *, seed: int = 0) -> nn.Module:
    """The model that a factory returns; its random numbers come from the seed, not from the global state."""
    factory = load_factory(text)
    with _current_folder_on_path(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            model = factory()
        except FusionError:
            raise
        except (Exception, SystemExit) as error:
            how = f"with {Spec.of(text).arguments}" if "," in text else "without arguments"
            raise OptionError(
                f"factory {text!r} failed: {first_line(error)}. It was called {how}; give arguments after commas, as "
                "NAME=VALUE, or wrap it in a function of your own"
            ) from error
    if not isinstance(model, nn.Module):
        raise OptionError(f"factory {text!r} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def load_evaluate_function(text: str) -> Callable[[nn.Module], Any]:
    """The function of a model that a text names, with its arguments bound; its failures become an OptionError."""
    spec = Spec.of(text, what="evaluate")
    found = _of_module(spec)

    def measure(model: nn.Module) -> Any:
        with _current_folder_on_path():
            try:
                return found(model, **spec.arguments)
            except FusionError:
                raise
            except (Exception, SystemExit) as error:
                raise OptionError(f"{spec.called} failed on a {type(model).__name__}: {first_line(error)}") from error

    return measure


def as_python(text: str) -> tuple[str, str]:
    """Python code for a factory: an import statement, and an expression that builds the model."""
    spec = Spec.of(text)
    keywords = [f"{name}={value!r}" for name, value in spec.arguments.items()]
    if spec.module in CATALOGUES:
        given = ", ".join([repr(spec.attribute), *keywords])
        return f"import {spec.module}", f"{CATALOGUES[spec.module]}({given})"
    if spec.module == DIRECTORY:
        name = class_name(spec.attribute)
        given = ", ".join([repr(spec.attribute), *keywords])
        return f"from transformers import AutoConfig, {name}", f"{name}(AutoConfig.from_pretrained({given}))"
    name = spec.attribute.partition(".")[0]
    return f"from {spec.module} import {name}", f"{spec.attribute}({', '.join(keywords)})"


def _of_module(spec: Spec) -> Callable[..., object]:
    with _current_folder_on_path():
        found: Any = _import(spec.module, spec.called)
    for part in spec.attribute.split("."):
        if not hasattr(found, part):
            near = _near(part, list(getattr(found, "__dict__", {})))
            raise OptionError(f"{spec.called}: {spec.module} has no {spec.attribute!r}{near}")
        found = getattr(found, part)
    if not callable(found):
        raise OptionError(f"{spec.called} is of type {type(found).__name__}: {NAMING[spec.what]}")
    return found


def _of_catalogue(spec: Spec) -> Callable[..., object]:
    """A model from timm or torchvision, without pretrained weights: those come from the checkpoint."""
    try:
        package: Any = importlib.import_module("torchvision.models" if spec.module == "torchvision" else "timm")
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{spec.called} needs {spec.module} ({first_line(error)}): pip install {spec.module}, or name "
            "package.module:factory"
        ) from error
    except Exception as error:  # a build for another PyTorch fails with RuntimeError
        raise OptionError(
            f"{spec.called}: {spec.module} is installed but cannot be imported ({first_line(error)}): install a build "
            "that fits your PyTorch, or name package.module:factory"
        ) from error
    name = spec.attribute
    if name.partition(".")[0] not in package.list_models():
        near = _near(name, package.list_models())
        raise OptionError(f"{spec.called}: {spec.module} has no model {name!r}{near}")
    if spec.module == "timm":
        return partial(package.create_model, name)
    builder: Callable[..., object] = package.get_model_builder(name)
    plain = {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}
    return partial(builder, **plain)


def _near(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known)
    return f"; did you mean {' or '.join(near)}?" if near else ""


@contextmanager
def _current_folder_on_path() -> Iterator[None]:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def _import(name: str, called: str) -> object:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise OptionError(
                f"{called}: there is no module {error.name!r}; install it, or run from its directory"
            ) from error
        raise OptionError(f"{called}: importing {name} failed: {first_line(error)}") from error
