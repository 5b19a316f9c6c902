"""When the bookkeeping of a step is done: at once, or for many steps in a row."""
