"""The command line: translates arguments into calls of the packages below."""
