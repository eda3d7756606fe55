"""Studies: data, training and experiments that show what the library does."""
