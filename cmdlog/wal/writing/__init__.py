"""Writing a log: places, the circular pool of fsync threads, watermarks, the pool of segments, anchors."""
