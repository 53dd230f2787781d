"""Commands that run a server or talk to one."""
