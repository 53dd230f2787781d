"""What a member does to lead, while it leads, and to give that away."""
