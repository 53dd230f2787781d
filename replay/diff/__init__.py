"""Differences between two states, table by table and row by row."""
