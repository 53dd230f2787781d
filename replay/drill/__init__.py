"""Restore drills: two ways to one state must agree."""
