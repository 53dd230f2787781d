"""What SQL may do, by whose statement it is: judged by SQLite itself, before it runs."""
