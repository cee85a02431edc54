"""Holds the node's tasks and outlives the agent: a small process that starts fast and imports nothing heavy.

Start at `messages.py`, which says what it can be told; `holder.py` says what it does. The agent speaks to it through
`gpuyard.live.agent.supervisor_client`.
"""
