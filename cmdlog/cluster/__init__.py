"""The cluster: what connects the consensus core with other nodes."""
