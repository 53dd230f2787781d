"""The SQLite file of one partition, what changed in it, and what SQL may do: judged by SQLite itself, before it runs."""
