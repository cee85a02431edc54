"""Why a task waits or how it ended, in a few words for a table; `explain` has the sentence."""

import re

from gpuyard.cli.shell.messages import localized, translated

SHORT_REASONS = {
    # it waits
    "NoNodesYet": "no nodes",
    "UnknownGpuModel": "no such GPU",
    "GpuMemoryTooSmall": "GPU memory too small",
    "WorkDoesNotFit": "does not fit a GPU",
    "NodeTooSmall": "nodes too small",
    "TooFewCpus": "too few CPUs",
    "HostMemoryTooSmall": "too little memory",
    "NoNodeWithLabels": "no such labels",
    "NoSystemUser": "no system user",
    "GangLargerThanCluster": "too few nodes",
    "ClassQuotaTooSmall": "above class quota",
    "TenantQuotaTooSmall": "above tenant limit",
    "BookedNodesUnsuitable": "booking unsuitable",
    "Booked": "GPUs booked",
    "BookingNotBegun": "booking not begun",
    "BookingFull": "booking full",
    "UnderMaintenance": "maintenance",
    "NoRoom": "GPUs busy",
    "HeldBack": "waits for faster GPUs",
    "NoCpuRoom": "CPUs or memory busy",
    "GangIncomplete": "nodes busy",
    "NodesClosed": "nodes unavailable",
    "ClassQuotaFull": "class quota",
    "TenantQuotaFull": "tenant limit",
    "TenantModelQuotaFull": "tenant limit (model)",
    "BudgetSpent": "budget spent",
    "ReservedFor": "behind {task}",
    "QuotaReservedFor": "quota behind {task}",
    "WaitingForTasks": "after {task}",
    "RunLimitReached": "limit of the array",
    "OnHold": "on hold",
    "UnknownAttemptRuns": "unknown attempt",
    "BackingOff": "retry delay",
    "WaitingForVictims": "preempting",
    "WaitingForMoves": "moving others",
    "Starting": "starting",
    # it has ended, or was stopped
    "succeeded": "",
    "exit_code": "exit {exit}",
    "out_of_memory": "out of GPU memory",
    "out_of_memory_on_largest": "out of GPU memory",
    "not_launched": "could not start",
    "member_failed": "member failed",
    "cancelled": "",
    "timeout": "",
    "deadline": "deadline",
    "dependency": "{task} failed",
    "preempted": "preempted",
    "reclaimed": "preempted (quota)",
    "moved": "moving",
    "exchanged": "moving",
    "made_room": "moving",
    "drained": "node drained",
    "node_lost": "node lost",
    "attempt_lost": "attempt lost",
    "suspended_by_user": "by request",
    "resumed_by_user": "resuming",
    "nodes_changed": "node changed",
}
"""By the code of the reason; empty: the status says it."""
_TASK = re.compile(r"task-\d+")
_EXIT = re.compile(r"exit code (-?\d+)")
_SIGNAL = re.compile(r"signal (\d+)")


def short_reason(code: str | None, sentence: str | None) -> str:
    """Return a reason in a few words; a code that is not known here gives the sentence."""
    short = SHORT_REASONS.get(code or "")
    sentence = sentence or ""
    if short is None:
        return localized(sentence)
    short = translated(short)
    if "{task}" in short:
        named = _TASK.search(sentence)
        return short.format(task=named[0] if named else translated("another task"))
    if "{exit}" in short:
        if signal := _SIGNAL.search(sentence):
            return translated("signal {number}").format(number=signal[1])
        found = _EXIT.search(sentence)
        return short.format(exit=found[1]) if found else translated("failed")
    return short
