"""Commands that make a cluster, show it and change its members."""
