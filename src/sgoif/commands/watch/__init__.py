"""`sgoif watch RUN`: a running audit on a page of this machine.

server      connections: how many, how long, what goes over them
access      who is answered
responses   what is answered
"""
