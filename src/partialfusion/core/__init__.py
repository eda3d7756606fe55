"""What every other package may use: arrays, modules, batches, progress, text. Nothing here knows a method."""
