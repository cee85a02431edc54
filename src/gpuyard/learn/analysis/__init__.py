"""Code analysis: the steps of a Python script, their dependencies and their kinds. The script is read and never run.

    source ─► steps ─► walker ──► dataflow ─► graph ─► levels, critical path, width
    (names)   (units)  (effects)   (reasons)    │
        │                  │                    └─► submission: one process, or parts connected by files only ─► trial
        └─► hazards        └─► step_classifier: training, inference, data, hpc, other

Read `effects`, `values` and `walker` in this order: their heads have the assumptions about code. `library_calls.toml`
has all knowledge of libraries.
Only `trial` runs anything, and only when asked.
"""

from gpuyard.learn.analysis.graph import ScriptTask, SubmitRequest, TaskGraph
from gpuyard.learn.analysis.script_analysis import analyze
from gpuyard.learn.analysis.trial import NOT_TRIED, Trial, try_division

__all__ = ["NOT_TRIED", "ScriptTask", "SubmitRequest", "TaskGraph", "Trial", "analyze", "try_division"]
