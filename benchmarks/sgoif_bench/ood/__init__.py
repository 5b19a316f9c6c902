"""The comparison of out-of-distribution detectors."""
