"""`format("cmdlog")`: the log as table and stream, tables about the log, tables as they were."""
