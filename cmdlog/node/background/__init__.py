"""Work beside the calls: the archive, drills, page checks, when a snapshot is due, and the recovery forecast."""
