"""Consensus: a sans-IO Raft core; no clock, chance, disk, socket or thread inside."""
