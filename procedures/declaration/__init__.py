"""What an application declares: tables, procedures, types, and where rows and calls belong."""
