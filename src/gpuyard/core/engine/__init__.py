"""What to do now: commands and reports in, facts out. No clock, no chance, no I/O; `now` comes with the call.

    command ──► Engine.handle ──► facts (or a refusal)  ─┐
    now     ──► Engine.decide ──► facts                 ─┴─► folds ──► the same State that a replay makes

Read `phases` (the life of a task as a table), then `state` (the books) and `folds` (what each fact changes in them),
then `engine` and `handlers` (what becomes of a command; `attempts` and `endings` are how things end). What waits: `wakeups`
(what a blocked task waits for), `queue` (lines of waiting tasks, and the index of wake-ups), `attempt` (may this task start,
and if not, why), `actions` (what is done for a task) and `schedule` (the pass that places what waits). `quota` (who may use
how much), `backfill` (reservations) and `preemption` are the rules; `explain` and `invariants` look at the result.
"""
