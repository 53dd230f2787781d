"""Deploys: other code into a running node, from its check in a process of its own to the switch between two calls."""
