"""Commands that work on a node directory."""
