"""Finding wrong labels: one problem, many methods, the same model, data and epochs for all."""
