"""What happens when things go wrong: kills at random moments, bad inputs, damaged files."""
