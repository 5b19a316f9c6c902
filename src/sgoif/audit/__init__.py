"""The audit: from a set of labelled images to decisions about its labels, in one training run."""
