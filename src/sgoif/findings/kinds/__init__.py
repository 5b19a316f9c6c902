"""The kinds of findings, a file for each family of checks."""
