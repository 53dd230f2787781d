"""What every request passes: route table, credentials, strict JSON, problems, tracing."""
