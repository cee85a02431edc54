"""FOLLOW THE PLAN: (plan, events) -> commands. Pure: work stealing, drift, retries, lost GPUs, planning again.

               ┌────────── commands: load, unload, call, stop, give back, plan again ──────────┐
               │                                                                                ▼
    plan ─► Executor ◄─ events: done, failed, lost, back, reclaimed, planned ─── whoever drives it: workers and a
               │                                                                 clock, or `rehearse` without either
               └─► what happened: the actuals, in the form of a plan

`work` is what has to be done, `messages` what is said, `execution` what is known at an instant, `choosing` what a GPU does
next, `executor` what each event means. `rehearse` (`gpuyard.testing.rehearsal`) is a world that obeys under a virtual clock.
"""
