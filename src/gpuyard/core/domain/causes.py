"""Why something was done to a task: typed for programs, one sentence for people."""

from enum import StrEnum

from gpuyard.core.domain.values import NodeId, TaskId, Value


class Why(StrEnum):
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
    DRAINED = "drained"
    NODE_LOST = "node_lost"
    ATTEMPT_LOST = "attempt_lost"
    SUSPENDED_BY_USER = "suspended_by_user"
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


_SENTENCES = {
    Why.SUCCEEDED: "It ended with exit code 0.",
    Why.EXIT_CODE: "It ended with a non-zero exit code.",
    Why.OUT_OF_MEMORY: "It ran out of GPU memory.",
    Why.OUT_OF_MEMORY_ON_LARGEST: "It ran out of GPU memory and had all of the largest GPU that it may use here, so it is not tried again.",
    Why.NOT_LAUNCHED: "Node {node} could not start it.",
    Why.MEMBER_FAILED: "Its part on node {node} failed, so the others were stopped.",
    Why.CANCELLED: "It was cancelled.",
    Why.TIMEOUT: "It ran longer than its timeout.",
    Why.DEADLINE: "Its deadline passed.",
    Why.DEPENDENCY: "Task {task}, whose success it needs, did not succeed.",
    Why.PREEMPTED: "Task {task} goes before it.",
    Why.RECLAIMED: "Task {task} took back GPUs that are its own by quota.",
    Why.MOVED: "It is faster on node {node}, and goes on there.",
    Why.EXCHANGED: "It changes places with task {task}, which gains more by that than it loses.",
    Why.DRAINED: "Node {node} is being emptied.",
    Why.NODE_LOST: "Node {node} was lost.",
    Why.ATTEMPT_LOST: "Node {node} does not know what became of it.",
    Why.SUSPENDED_BY_USER: "It was suspended on request.",
    Why.NODES_CHANGED: "Node {node} is not what it was.",
    Why.OVERTAKEN: "Task {task}, which goes before it, took the place.",
    Why.SETTINGS_CHANGED: "The settings changed.",
    Why.ROOM_LOST: "The room that was made for it is gone again.",
    Why.NOT_SUSPENDED: "Task {task} could not be suspended for it.",
    Why.AT_LIMIT: "Its tenant or class is at a limit now.",
    Why.QUEUED: "It joined the queue.",
    Why.GPUS_FREED: "Task {task} released GPUs.",
    Why.VICTIMS_GONE: "The tasks that were stopped for it have released their GPUs.",
    Why.PREEMPTIBLE_STARTED: "Task {task}, which may be stopped for it, began to run.",
    Why.RESERVATION_ENDED: "The reservation of task {task} ended.",
    Why.RESERVATION_MOVED: "The reservation of task {task} was made again, with another start.",
    Why.QUEUE_CHANGED: "Task {task} left the queue or moved in it.",
    Why.LIMITS_CHANGED: "A limit of a tenant or class changed.",
    Why.USAGE_CHANGED: "The usage of tenants or classes changed, and with it the order of the queue.",
    Why.TIME_CAME: "The instant that it waited for was reached.",
}


class Cause(Value, frozen=True):
    """A reason, with the task or node it speaks of."""

    why: Why
    task: TaskId | None = None
    node: NodeId | None = None

    def sentence(self) -> str:
        """One sentence for the user."""
        return _SENTENCES[self.why].format(task=self.task, node=self.node)
