"""Decisions: which log counts, from what each partition is restored, and up to where."""
