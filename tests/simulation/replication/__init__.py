"""The replication protocol under a virtual network, virtual clocks and virtual disks, with faults drawn from one seed.

    python -m tests.simulation.replication --seeds 0:100000          many runs; exit code 1 on a violation
    python -m tests.simulation.replication --seeds 17 --trace        one run, step by step
    python -m tests.simulation.replication --without in_sync         one rule of the protocol switched off
    python -m tests.simulation.replication --choose-voters           the leader chooses voters by electorate.py

The code under test is `gpuyard.core.replication`, unchanged; the processes here are its drivers.

world.py        one run: time, network, clients, start and end
process.py      a process: its clock, its disk, its outputs in order; it can crash and stand still
scheduler.py    drives a `Replica`: accepts requests, places tasks, launches them
node.py         drives a `Voter`: votes, and starts what it is told to start
faults.py       what can go wrong, one function each
checks.py       what must never happen
rules.py        the rules of the protocol, each with a way to switch it off
campaign.py     many runs and their counts
"""
