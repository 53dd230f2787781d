"""Rebuild and back-fill as direct jobs: orders, attempts, staging, what their tasks share."""
