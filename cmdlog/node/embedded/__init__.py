"""A node inside the calling process: no server, the same log and recovery."""
