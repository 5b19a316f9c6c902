"""What the commands do beside the tasks; `sgoif.cli` has their options."""
