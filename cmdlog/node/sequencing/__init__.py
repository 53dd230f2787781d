"""From a placed call to a durable batch at its site: routing, admission, partition pipelines, blocks."""
