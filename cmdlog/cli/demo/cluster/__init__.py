"""The demo of a cluster: its nodes lose leaders, disks and each other, and its members change under load."""
