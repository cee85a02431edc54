"""The built-in rules. `alerts.rules` of the settings changes their thresholds and times, or disables them."""

from gpuyard.live.control_plane.alerts.rules.rule import Rule, Severity

AGENT_LOST = "agent_lost"

BUILT_IN: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            AGENT_LOST, "A node sends no heartbeats.", "", 1, 1, severity=Severity.CRITICAL,
        ),
        Rule(
            "gpu_hot", "A GPU is hot.", "°C", 85, 80, for_seconds=60, keep_firing_seconds=60,
            inhibited_by=AGENT_LOST,
        ),
        Rule(
            "gpu_memory_full", "The memory of a GPU is nearly full.", "%", 95, 90, for_seconds=300,
            severity=Severity.INFO, inhibited_by=AGENT_LOST,
        ),
        Rule(
            "idle_gpu_held", "A task holds a GPU that it does not use.", "% utilization", 5, 10, above=False,
            for_seconds=1800, severity=Severity.INFO, inhibited_by=AGENT_LOST,
        ),
        Rule(
            "queue_stuck", "Tasks wait, GPUs are idle, and no task has started.", "s", 1800, 60,
        ),
        Rule(
            "quota_exhausted", "A limit or a budget is used up, and tasks wait for it.", "% used", 100, 95,
            for_seconds=600, severity=Severity.INFO,
        ),
        Rule(
            "journal_slow", "Writing to the journal takes long.", "s per commit", 0.5, 0.2, for_seconds=60,
            severity=Severity.CRITICAL,
        ),
        Rule(
            "predictor_drift", "The predictions of run times or memory are wrong by much.", "% median error", 75, 60,
            for_seconds=600, severity=Severity.INFO,
        ),
        Rule(
            "disk_full", "A disk is nearly full.", "GiB free", 5, 8, above=False, for_seconds=60,
            severity=Severity.CRITICAL, inhibited_by=AGENT_LOST,
        ),
    )
}  # fmt: skip
"""In the order of evaluation: a rule that inhibits others comes before them."""
