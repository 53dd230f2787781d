"""Several logs as one history, in the order of transaction ids."""
