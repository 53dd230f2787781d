"""The running node: clock, sequencer, sites, log driver, settings."""
