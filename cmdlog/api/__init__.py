"""HTTP: procedure calls single and in batches, queries, status, snapshots, health."""
