"""Who runs it: what stands behind nodes that come and go. Today, who boots them."""
