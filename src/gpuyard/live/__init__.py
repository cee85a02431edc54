"""Runs: the scheduler, the agents on the nodes, the messages between them, and the client library."""
