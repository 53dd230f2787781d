"""Who is in the cluster: the operator's wishes, the failure detector, and the steps that both come to."""
