"""Usage: who held how many GPUs for how long, what of it was idle or lost, and how long tasks waited.

events ─► views ─► spans of open tasks ─────────────────┐
                └► spans of ended tasks ─► archive ─────┴─► accounting (pure) ─► GET /api/v1/usage, gpuyard usage
"""
