"""Reading what a run has left behind: tables, intervals, errors, certificates. Nothing here changes a run."""
