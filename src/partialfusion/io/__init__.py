"""Files: stored fusions, checkpoints, data, factories named by text, ONNX."""
