"""Modules that fused networks are made of, beside those of their own classes; they need nothing but PyTorch."""

from .view_norm import ViewNorm

__all__ = ["ViewNorm"]
