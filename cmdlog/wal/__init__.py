"""The command log: its format, its files, its threads."""
