"""Whether an application can be replayed: lint, and the same workload twice."""
