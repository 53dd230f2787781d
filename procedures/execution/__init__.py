"""Running batches of calls on a state: executor, context, statements, idempotency, outcomes."""
