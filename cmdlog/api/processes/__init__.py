"""HTTP in processes of its own beside the node, and the links between them and it."""
