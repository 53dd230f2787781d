"""Whose node directory it is: instance file, fixed sizes, exclusive lock."""
