"""Held-out examples, their groups, and the directions kept for them."""
