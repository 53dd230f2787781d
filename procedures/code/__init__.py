"""An application's code as the log keeps it: bundles, their versions, and the way back to a `Database`."""
