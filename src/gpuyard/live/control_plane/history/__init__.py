"""History: what GPUs, nodes and the cluster did, in a file of fixed size beside the journal. Read layout.py first."""
