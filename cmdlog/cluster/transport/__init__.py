"""Connections between nodes: sealed frames over TCP, and who may be at the other end."""
