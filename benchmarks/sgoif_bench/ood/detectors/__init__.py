"""Detectors for a network that was trained as usual; one file each, with formula and paper."""
