"""Recipes: YAML files that describe a fusion or a pruning, checked before anything is computed."""

from .schema import located, read_recipe

__all__ = ["located", "read_recipe"]
