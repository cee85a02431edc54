"""Executor: (plan, events) -> commands. Pure: work stealing, drift, retries, lost GPUs, replanning.

               ┌────────── commands: load, unload, call, stop, give back, plan again ──────────┐
               │                                                                                ▼
    plan ─► Executor ◄─ events: done, failed, lost, back, reclaimed, planned ─── the driver: workers and a clock,
               │                                                                 or `rehearse` without either
               └─► the actuals: the recorded runs, in the form of a plan

`work` defines the calls and the GPUs, `messages` the commands and events, `execution_state` the current state,
`choosing` what a GPU does next, `executor` the handling of each event. `rehearse` (`gpuyard.testing.rehearsal`)
simulates the workers under a virtual clock.
"""
