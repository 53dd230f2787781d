"""The demo: load, kill, recovery and proof, with real processes."""
