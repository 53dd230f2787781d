"""What `tx.execute` returns: rows and their values, or the count of a change."""
