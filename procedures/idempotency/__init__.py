"""What a partition knows of calls that have a name: whether a call is a repetition, and what it was answered."""
