"""Statements of procedures: compiled, held to the rules, prepared, run; and their results."""
