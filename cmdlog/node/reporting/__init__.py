"""What operators see of a running node: its status, and its metrics as text."""
