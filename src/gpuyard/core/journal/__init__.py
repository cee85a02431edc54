"""The journal: events are appended durably, stay readable forever, and are summarized in snapshots.

Start at `port.py`, which defines the interface; `stores/` implements it in memory and on disk.
"""
