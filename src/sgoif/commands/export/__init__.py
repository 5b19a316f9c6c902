"""`sgoif export`: what an audit found, as files that other tools import."""
