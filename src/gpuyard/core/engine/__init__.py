"""What to do now: commands and reports in, facts out. No clock, no chance, no I/O; `now` comes with the call.

    command ──► Engine.handle ──► facts (or a refusal)  ─┐
    now     ──► Engine.decide ──► facts                 ─┴─► folds ──► the same State that a replay makes

Read `phases` (the life of a task as a table), then `state` (the books) and `folds` (what each fact changes in them),
then `engine` and `handlers` (what becomes of a command; `attempts` and `endings` are how things end), then `queue` and
`schedule` (the pass that places what waits; `deeds` is what it can do, `short_ways` how it saves time). `backfill`,
`preemption` and `quota` are the ideas it stands on; `explain` and `invariants` look at the result.
"""
