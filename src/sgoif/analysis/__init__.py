"""What can be read off a monitor: intervals, error budget, certificates, attribution."""
