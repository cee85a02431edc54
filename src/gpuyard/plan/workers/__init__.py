"""WHO HOLDS THE MODELS: workers that load, hold, unload and call models for a plan: local processes, Ray actors.

    follow ──── Executor (pure) ──── what to do, in numbers
      │
      ├─ orders ──► Pool.send   ──► a worker for each GPU: a process, a Ray actor
      │                                   └─ Hand: the models it holds, each in a runtime
      └─ events ◄── Pool.wait   ◄── replies, and workers that are gone     (python, command, openai, virtual)

`plans` speaks with the planner, `leases` with a yard that lends the GPUs.
"""
