"""Snapshots of a partition: capture, manifest, catalog, restore."""
