"""What Linux knows and does beyond files: which machine this is, when a file was made, writes that need no thread."""
