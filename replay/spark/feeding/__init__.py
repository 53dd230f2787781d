"""Calls from files or DataFrames into a running service, each executed once."""
