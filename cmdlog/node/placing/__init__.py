"""Calls on their way to the sequencer: partition, idempotency key, parts on all partitions; and what is done beside calls."""
