"""Replication: one journal on two schedulers, and votes of the nodes' agents that decide which of them may lead.

Start at `replica.py`, whose head explains the protocol. `voter.py` is what an agent or a witness answers, and
`electorate.py` chooses the voters. `live/voting` connects voters, `live/control_plane/replication` the schedulers.
docs/decisions/0065 and 0068 have the safety argument.
"""
