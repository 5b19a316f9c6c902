"""What fills the tables of the benchmark pages from the result files; a module for every page."""
