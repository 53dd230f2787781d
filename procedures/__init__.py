"""Stored procedures: registration, transaction context, state of a partition, executor."""
