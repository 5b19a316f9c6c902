"""Data sets, label noise, models and protocols: everything that measures the library rather than being it."""
