"""Copying a node: what a node that lacks data says to one that has it, and how that one gives it away. See WIRE.md."""
