"""Making a snapshot: whole images and deltas, copied between batches, then sealed."""
