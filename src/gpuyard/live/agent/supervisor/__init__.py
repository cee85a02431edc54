"""Holds the node's tasks and outlives the agent: a small process that starts fast and imports nothing heavy.

Start with `messages.py`, which defines its commands; `attempts.py` carries them out. The agent talks to it through
`gpuyard.live.agent.supervisor_client`.
"""
