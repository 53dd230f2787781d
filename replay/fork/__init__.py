"""Replays the same calls with different code from one transaction on."""
