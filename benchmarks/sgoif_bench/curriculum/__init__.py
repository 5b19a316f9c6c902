"""Training despite wrong labels: what a curriculum is worth in test accuracy, beside rivals and plain training."""
