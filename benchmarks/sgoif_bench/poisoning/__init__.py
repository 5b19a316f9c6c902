"""Finding planted training examples: attacks, rivals, and a grid of both."""
