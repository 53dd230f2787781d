"""A majority is lost for good: one survivor goes on alone, by an operator's word, under another name of the cluster."""
