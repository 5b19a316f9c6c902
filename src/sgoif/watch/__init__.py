"""`sgoif watch RUN`: a running audit on a page of this machine.

server    what is served, to whom
command   `sgoif watch`
"""
