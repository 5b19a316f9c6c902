"""Time and repeated work on a GPU."""
