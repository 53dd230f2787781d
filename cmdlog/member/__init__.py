"""A node that is one of several: what makes and runs the entries of consensus, who leads, and what a new leader does first."""
