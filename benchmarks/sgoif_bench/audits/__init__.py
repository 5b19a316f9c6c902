"""The whole command `sgoif audit`, from a folder of images to its report: the way it chooses against the others.

ways       how an audit is asked for
grid       one audit, and what its result line holds
folders    a data set with wrong labels as a folder of image files
process    an audit as a process of its own, with its time by stage
left       what an audit left behind
"""
