"""Everything that `sgoif` finds in a folder of images, beside what was planted there and beside a clean twin.

changes    what is done to a picture
pictures   the images that are written, of a data set or generated
planting   a folder with findings planted at known rates, and what was planted
kinds      what is planted for every kind, and when a finding about it is right
grid       one folder and its twin, and what a result line holds
speed      time and memory of the same checks beside CleanVision and cleanlab
"""
