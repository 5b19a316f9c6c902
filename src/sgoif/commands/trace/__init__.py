"""`sgoif trace`: which training images make a model answer wrongly, from the command line.

The mathematics is in `sgoif.tasks.poisoning`; here are the files around it: runs, images, tables, a page.
"""
