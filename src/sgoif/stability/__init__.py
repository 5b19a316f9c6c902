"""How large a residual may be, how far an anchor and a step are trusted, and what is certain about a score."""
