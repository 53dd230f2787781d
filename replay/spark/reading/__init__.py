"""From options to Arrow batches: segment index, chosen logs, read plan, a task's rows."""
