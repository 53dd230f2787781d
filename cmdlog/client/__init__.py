"""Clients of the HTTP interface."""
