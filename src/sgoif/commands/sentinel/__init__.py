"""`sgoif sentinel`: whether images belong to what a model was trained on, from the command line.

The mathematics is in `sgoif.tasks.ood`; here are the files around it: images, models, tables, a page.
"""
