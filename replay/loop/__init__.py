"""One loop that gives the entries of a log to the policies of partitions; what an entry does is the policy's."""
