"""Predicted against retrained: what deleting training examples does to a head, and to the whole network."""
