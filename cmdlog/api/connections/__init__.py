"""Connections: accepting, parsing, phases and deadlines, TLS."""
