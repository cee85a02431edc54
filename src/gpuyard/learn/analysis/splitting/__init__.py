"""A PyTorch model divided over GPUs: stages of a pipeline and replicas, balanced by predicted time.

    module:Name ─► count (a process of its own, torch's meta device) ─► parts ─► partition ─► plans, the best first
                                            a Cost (what `predictor` says) ────────┘

`count` runs user code and nothing else here does. `partition` is plain arithmetic over what its Cost says.
"""
