"""What two states hold differently, table by table and row by row."""
