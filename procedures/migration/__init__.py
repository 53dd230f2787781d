"""Changes of tables that hold rows: what the log says of them, and how they are rehearsed and run."""
