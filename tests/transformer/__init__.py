"""Conformance with transformers. A folder of that name would hide the package, being on the path of the tests."""
