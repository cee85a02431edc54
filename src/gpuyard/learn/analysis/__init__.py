"""CODE ANALYSIS: the steps of a Python script, which needs which, and what they are. The script is read and never run.

    source ─► steps ─► effects ─► dataflow ─► graph ─► levels, critical path, width
    (names)   (units)  (per unit)  (reasons)    │
                           │                    └─► submission: one process, or parts that meet in files only
                           └─► step_classifier: training, inference, data, hpc, other

Read `effects` first: its head says what is believed of code. `library_calls.toml` has all knowledge of libraries.
"""

from gpuyard.learn.analysis.graph import ScriptTask, SubmitRequest, TaskGraph
from gpuyard.learn.analysis.script_analysis import analyze

__all__ = ["ScriptTask", "SubmitRequest", "TaskGraph", "analyze"]
