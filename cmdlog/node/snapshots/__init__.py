"""Snapshots of the running node: the thread that makes them, and what it waits for."""
