"""From what a training step leaves behind to remembered scores of examples."""
