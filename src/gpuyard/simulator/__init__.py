"""What-if simulation: the live engine under a virtual clock, on nodes that exist only in memory. See README.md."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuyard.simulator.comparison import JobSet as JobSet
    from gpuyard.simulator.comparison import PolicyRun as PolicyRun
    from gpuyard.simulator.comparison import convert_trace as convert_trace
    from gpuyard.simulator.comparison import generated_jobs as generated_jobs
    from gpuyard.simulator.comparison import intervals as intervals
    from gpuyard.simulator.comparison import journal_jobs as journal_jobs
    from gpuyard.simulator.comparison import simulate as simulate
    from gpuyard.simulator.comparison import trace_jobs as trace_jobs
    from gpuyard.simulator.comparison import write_jobs as write_jobs
else:

    def __getattr__(name: str) -> object:
        """Import `comparison` on first use; most modules of the simulator do not need it."""
        if name in {
            "JobSet",
            "PolicyRun",
            "convert_trace",
            "generated_jobs",
            "intervals",
            "journal_jobs",
            "simulate",
            "trace_jobs",
            "write_jobs",
        }:
            from gpuyard.simulator import comparison

            return getattr(comparison, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
