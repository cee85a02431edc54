"""Command handlers: for each kind of command a function that emits events, or returns a refusal and emits none.

A handler makes all its checks before it emits the first event, so a refusal changes nothing. Placement is decided later,
by the scheduling pass.
"""

from collections.abc import Callable
from typing import Any

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.engine.handlers import bookings, cluster, nodes, reports, tasks
from gpuyard.core.engine.ledger import Ledger

HANDLERS: dict[type[command.Command], Callable[[Ledger, Any], Refusal | None]] = {
    command.SubmitTasks: tasks.submit,
    command.CancelTask: tasks.cancel,
    command.HoldTask: tasks.hold,
    command.ReleaseTask: tasks.release,
    command.SuspendTask: tasks.suspend,
    command.ResumeTask: tasks.resume,
    command.ChangePriority: tasks.change_priority,
    command.ReviseEstimate: tasks.revise_estimate,
    command.ExtendTask: tasks.extend,
    command.SetRunLimit: tasks.set_run_limit,
    command.SettleNotice: tasks.settle_notice,
    command.MakeBooking: bookings.make_booking,
    command.CancelBooking: bookings.cancel_booking,
    command.ReportStarted: reports.started,
    command.ReportNotSuspended: reports.not_suspended,
    command.ReportNotResumed: reports.not_resumed,
    command.ReportSuspended: reports.suspended,
    command.ReportResumed: reports.resumed,
    command.ReportEnded: reports.ended,
    command.JoinNode: nodes.join,
    command.LoseNode: nodes.lose,
    command.StopNode: nodes.stop,
    command.ReturnNode: nodes.return_node,
    command.RemoveNode: nodes.remove,
    command.CordonNode: nodes.cordon,
    command.UncordonNode: nodes.uncordon,
    command.SetGpuHealth: nodes.set_health,
    command.CreateCluster: cluster.create_cluster,
    command.BeginEpoch: cluster.begin_epoch,
    command.EndEpoch: cluster.end_epoch,
    command.SkipTaskNumbers: cluster.skip_numbers,
    command.RecordAccessChange: cluster.record_access_change,
    command.SetTenant: cluster.set_tenant,
    command.SetSplit: cluster.set_split,
    command.ChangeSettings: cluster.change_settings,
}
