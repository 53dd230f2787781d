"""The same calls with other code from one transaction on."""
