"""Rivals that train a network, or several, in their own way; one file each, with formula and paper."""
