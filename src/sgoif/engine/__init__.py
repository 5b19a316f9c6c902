"""The parts that the monitor is made of."""
