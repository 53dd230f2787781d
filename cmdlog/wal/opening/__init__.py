"""Opening a log: survey, scan, restart table, repair, and whether the directory is the one it was."""
