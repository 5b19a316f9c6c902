"""`sgoif unlearn`: deletion requests from the command line.

The mathematics is in `sgoif.tasks.unlearning`; here are the files around it: finished audits, archives of features,
states that live from one command to the next.
"""
