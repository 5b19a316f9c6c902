"""When the bookkeeping of a step is done: at once (`eager`), or for many steps in a row (`deferred`)."""
