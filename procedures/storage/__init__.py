"""The SQLite file of one partition, its authorizer, and what changed in it."""
