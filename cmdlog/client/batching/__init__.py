"""Many calls in one request: batches, and calls that share a request by themselves."""
