"""Recovery: which records, in which order, applied through the same executor as live calls."""
