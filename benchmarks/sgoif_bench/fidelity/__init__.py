"""Whether influence scores predict what retraining does, for SG-OIF and for the libraries beside it."""
