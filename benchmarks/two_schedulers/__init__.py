"""The parts of benchmarks/failover.py.

pair.py     two schedulers and their nodes, each on a host, a disk and a clock of its own if a fault needs that
load.py     submits tasks at a steady rate
watch.py    asks both schedulers for their health all the time
faults.py   the kinds of faults: each causes one and mends it
counts.py   counts broken promises afterwards
table.py    the table of the manual, from the results of several runs
"""
