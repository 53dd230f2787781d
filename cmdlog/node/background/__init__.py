"""Work beside the calls: snapshots, the archive, drills, page checks, and the recovery forecast."""
