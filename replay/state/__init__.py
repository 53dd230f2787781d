"""State files: whether they may be trusted, and rows of the live run that they still hold."""
