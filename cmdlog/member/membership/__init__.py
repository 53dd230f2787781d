"""What every member does about the roll: peers, pins and failure sets; and what the leading one does to change it."""
