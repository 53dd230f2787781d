"""Several nodes that carry one log: the driver of consensus, and what a node needs to be one of several."""
