"""`sgoif demo`: wrong labels in handwritten digits, found while a small network trains on them."""
