"""Training loops as others write them, with the monitor added by documented lines: what is found, what is changed."""
