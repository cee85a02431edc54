"""Why something was done to a task: typed for programs, one sentence for people."""

from enum import StrEnum

from gpuyard.core.domain.values import NodeId, TaskId, Value


class CauseKind(StrEnum):
    """The kinds of causes."""

    SUCCEEDED = "succeeded"
    EXIT_CODE = "exit_code"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_MEMORY_ON_LARGEST = "out_of_memory_on_largest"
    NOT_LAUNCHED = "not_launched"
    MEMBER_FAILED = "member_failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    DEPENDENCY = "dependency"
    PREEMPTED = "preempted"
    RECLAIMED = "reclaimed"
    MOVED = "moved"
    EXCHANGED = "exchanged"
    MADE_ROOM = "made_room"
    DRAINED = "drained"
    NODE_LOST = "node_lost"
    ATTEMPT_LOST = "attempt_lost"
    SUSPENDED_BY_USER = "suspended_by_user"
    RESUMED_BY_USER = "resumed_by_user"
    NODES_CHANGED = "nodes_changed"
    OVERTAKEN = "overtaken"
    SETTINGS_CHANGED = "settings_changed"
    AT_LIMIT = "at_limit"
    ROOM_LOST = "room_lost"
    NOT_SUSPENDED = "not_suspended"
    QUEUED = "queued"
    GPUS_FREED = "gpus_freed"
    VICTIMS_GONE = "victims_gone"
    PREEMPTIBLE_STARTED = "preemptible_started"
    RESERVATION_ENDED = "reservation_ended"
    RESERVATION_MOVED = "reservation_moved"
    QUEUE_CHANGED = "queue_changed"
    LIMITS_CHANGED = "limits_changed"
    USAGE_CHANGED = "usage_changed"
    TIME_CAME = "time_came"
    BOOKED = "booked"
    BOOKING_ENDED = "booking_ended"


_SENTENCES = {
    CauseKind.SUCCEEDED: "It ended with exit code 0.",
    CauseKind.EXIT_CODE: "It ended with a non-zero exit code.",
    CauseKind.OUT_OF_MEMORY: "It ran out of GPU memory.",
    CauseKind.OUT_OF_MEMORY_ON_LARGEST: (
        "It ran out of GPU memory with all memory of the largest GPU that it may use, so it is not retried."
    ),
    CauseKind.NOT_LAUNCHED: "Node {node} could not start it.",
    CauseKind.MEMBER_FAILED: "Its member on node {node} failed, so the other members were stopped.",
    CauseKind.CANCELLED: "It was cancelled.",
    CauseKind.TIMEOUT: "It ran longer than its timeout.",
    CauseKind.DEADLINE: "Its deadline passed.",
    CauseKind.DEPENDENCY: "task-{task}, on whose success it depends, did not succeed.",
    CauseKind.PREEMPTED: "It was preempted for task-{task}, which is ahead of it.",
    CauseKind.RECLAIMED: "It was preempted for task-{task}, which took back GPUs of its quota.",
    CauseKind.MOVED: "It is faster on node {node} and continues there.",
    CauseKind.EXCHANGED: "It was exchanged with task-{task}, which gains more than it loses.",
    CauseKind.MADE_ROOM: "It was moved to make room for task-{task}.",
    CauseKind.DRAINED: "Node {node} is being drained.",
    CauseKind.NODE_LOST: "Node {node} was lost.",
    CauseKind.ATTEMPT_LOST: "Node {node} no longer knows the attempt.",
    CauseKind.SUSPENDED_BY_USER: "It was suspended on request.",
    CauseKind.RESUMED_BY_USER: "It was resumed on request and waits for GPUs.",
    CauseKind.NODES_CHANGED: "Node {node} joined again with other properties.",
    CauseKind.OVERTAKEN: "task-{task}, which is ahead of it, took the placement.",
    CauseKind.SETTINGS_CHANGED: "The settings changed.",
    CauseKind.ROOM_LOST: "The GPUs that were reserved for it are no longer available.",
    CauseKind.NOT_SUSPENDED: "task-{task} could not be suspended for it.",
    CauseKind.AT_LIMIT: "Its tenant or class has reached a limit.",
    CauseKind.QUEUED: "This was decided when it joined the queue.",
    CauseKind.GPUS_FREED: "task-{task} released GPUs.",
    CauseKind.VICTIMS_GONE: "The tasks that were stopped for it have released their GPUs.",
    CauseKind.PREEMPTIBLE_STARTED: "task-{task}, which may be preempted for it, started to run.",
    CauseKind.RESERVATION_ENDED: "The reservation of task-{task} ended.",
    CauseKind.RESERVATION_MOVED: "The reservation of task-{task} was renewed with another start.",
    CauseKind.QUEUE_CHANGED: "task-{task} left the queue or moved in it.",
    CauseKind.LIMITS_CHANGED: "A limit of a tenant or class changed.",
    CauseKind.USAGE_CHANGED: "The usage of tenants or classes changed, and with it the order of the queue.",
    CauseKind.TIME_CAME: "The time that it waited for was reached.",
    CauseKind.BOOKED: "Its GPUs were booked by booking-{booking}.",
    CauseKind.BOOKING_ENDED: "booking-{booking} began, ended or changed.",
}


class Cause(Value, frozen=True):
    """A reason, with the task or node that it concerns."""

    why: CauseKind
    task: TaskId | None = None
    node: NodeId | None = None
    booking: int | None = None

    def sentence(self) -> str:
        """One sentence for the user."""
        return _SENTENCES[self.why].format(task=self.task, node=self.node, booking=self.booking)
