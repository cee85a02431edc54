"""What to do now: commands and reports in, facts out. No clock, no chance, no I/O; `now` comes with the call.

    command ──► Engine.handle ──► facts (or a refusal)  ─┐
    now     ──► Engine.decide ──► facts                 ─┴─► State.apply ──► the same State that a replay folds

Read `phases` (the life of a task as a table), then `state` (the fold), then `engine` (the commands), then `schedule`
(the pass that places what waits). `backfill`, `preemption` and `quota` are the ideas it stands on; `explain` and
`invariants` look at the result.
"""
