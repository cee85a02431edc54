"""Decide what to do now: commands and reports in, events out. No clock, no randomness, no I/O; `now` is an argument.

    command ──► Engine.handle ──► events (or a refusal)  ─┐
    now     ──► Engine.decide ──► events                 ─┴─► apply ──► the same State that a replay produces

Read `phases` (the life of a task as a table), then `state` (tasks, nodes, usage) and `apply` (how each event changes
them), then `engine` and `handlers` (how commands are handled; `attempts` and `endings` end attempts and tasks). Waiting
tasks: `wakeups` (what a blocked task waits for), `queue` (lines of waiting tasks, and the index of wake-ups),
`try_place` (whether a task can start now, and if not, why), `actions` (place, reserve, preempt) and `schedule` (the
scheduling pass). `quota` (limits of tenants and classes), `backfill` (reservations) and `preemption` are the rules;
`explain` and `invariants` inspect the result.
"""
