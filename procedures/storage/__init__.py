"""The SQLite file of one partition, and what changed in it."""
