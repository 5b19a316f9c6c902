"""`sgoif diff`: what changed between two versions of a set of images."""
