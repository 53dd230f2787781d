"""Command log and snapshot recovery for stored procedures."""
