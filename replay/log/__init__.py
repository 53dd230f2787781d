"""What can be read of a node's log: sources, archive reach, spans around damage, first passes, evidence."""
