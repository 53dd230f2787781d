"""A node that lacks data is made again as a whole, from another node's snapshots, before it runs."""
