"""Calls that reach a node which does not lead: sent to the leader by one node, placed by the other."""
