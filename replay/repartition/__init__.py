"""Recovery into another number of partitions."""
