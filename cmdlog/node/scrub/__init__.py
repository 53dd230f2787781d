"""The background reading of what lies on the disk: log, snapshots and archive are checked, compared with the peers, repaired."""
