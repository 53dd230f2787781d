"""Carrying out a plan: restore, replay, compare, set aside, resume."""
