"""Segments and snapshots kept beyond the ring."""
