"""The real scheduler and real agents in one process, under a virtual clock and one seed, with faults.

scenario.py     one scenario: a cluster, a load, faults drawn from the seed, and the checks at the end
scheduler.py    a scheduler's machine: the real `Scheduler` on a disk in memory, killed, stopped, restarted
machine.py      a node: the real `Agent` and a supervisor in memory that holds virtual processes
network.py      the network between them, in place of gRPC: the real messages as bytes, late, cut or broken
event_loop.py   an event loop whose time is virtual, and processes that can be stopped and killed
ledger.py       what the virtual processes write down themselves, and what it must add up to
"""
