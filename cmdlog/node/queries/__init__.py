"""Read-only SQL on a frozen state, in processes that can be ended."""
