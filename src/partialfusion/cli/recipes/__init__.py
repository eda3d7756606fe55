"""Recipes: a fusion or a pruning written down as YAML, checked before anything is computed."""

from .lines import located
from .schema import read_recipe

__all__ = ["located", "read_recipe"]
