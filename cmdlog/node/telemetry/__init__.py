"""What the running node counts and times, and the last minutes of it."""
