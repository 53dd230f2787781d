"""What the routes do, and their description."""
