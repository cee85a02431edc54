"""What happened: facts are appended durably, read back for ever, and summed up in snapshots.

Start at `port.py`, which says what a journal promises; `stores/` keeps the promise in memory and on disk.
"""
