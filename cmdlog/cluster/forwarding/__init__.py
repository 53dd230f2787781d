"""Calls that a node takes and another one places: frames, links, and the two ends. See WIRE.md."""
