"""Files: stored fusions, checkpoints, data and ONNX; and models built by a factory that is given by its name."""
