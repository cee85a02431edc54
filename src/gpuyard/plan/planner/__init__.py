"""WHAT WOULD BE BEST: offline AI workflows on GPUs that must load and unload models, planned for the shortest makespan.

    file ─► read ─► Problem ─► a strategy ─► Plan ─► check (shares no code with the strategies)
                       └─────► bounds: what no plan can beat          └─► measures, pictures, the executor

Pure: the budget of a strategy (a seed, a number of rounds, `keep_going`) is handed in. Numba, OR-Tools and pymoo load
only where they are used.
"""
