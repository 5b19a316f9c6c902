"""`sgoif review`: decisions about the list of a finished audit, one image at a time."""
