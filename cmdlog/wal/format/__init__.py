"""Codecs of everything in a segment: blocks, records, batches, segment headers. See FORMAT.md."""
