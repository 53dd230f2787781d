"""HTTP: translates requests into calls of the node."""
