"""Channels between nodes beside consensus: what those for calls and for copies have in common."""
