"""What each role does with a message: follower, candidate, leader; votes, reads, transfer, membership."""
