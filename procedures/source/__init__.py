"""Which modules are an application's own, and their source."""
