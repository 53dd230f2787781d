"""Values on the wire: type hints as codecs, results as JSON."""
