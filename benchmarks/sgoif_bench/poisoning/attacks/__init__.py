"""Attacks on training data, one file each. `naming` finds one by a name such as badnets-1."""
