"""The routes by which an operator sees and changes the members of a cluster."""
