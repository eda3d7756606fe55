"""Conformance with torchvision's classification models."""
