"""A PyTorch model divided over GPUs: stages of a pipeline and replicas, balanced by predicted time.

    module:Name ─► count (a process of its own, torch's meta device) ─► Counts ─► partition ─► plans, the best first
                                                   a Cost (roofline of a GPU) ────┘

`count` runs user code and nothing else here does. `partition` and `roofline` are plain arithmetic; whoever has a better Cost hands
in that one.
"""
