"""Sample applications with loaders and seeded workload generators."""
