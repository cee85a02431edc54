"""Compute what to tell a node that (re)connects, from the engine's state and the attempts on the node.

    the engine has    the node has      then
    placed            nothing           launch it
    placed            it runs           the report of its start was lost: it is running
    suspending …      it runs           repeat the command
    stopping          it runs           repeat the command
    stopping          nothing           repeat the command: the node answers that it has nothing
    running           it runs           remind the agent which GPUs it holds
    ended, or later   it runs           stop it: the task continued elsewhere
    part given up     it has it         stop it: its gang does not continue
    unknown           it runs           hold it and report it; an old journal may have been restored

An attempt that has ended on the node needs nothing: the node repeats its report until it is acknowledged. An attempt
that ran and is no longer on the node was lost when the node registered (`engine/handlers/nodes.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.values import AttemptRef, NodeId
from gpuyard.core.engine.phases import Placed, Resuming, Running, Stopping, Suspended, Suspending
from gpuyard.core.engine.state import State
from gpuyard.core.engine.task import OpenTask
from gpuyard.live.wire import agents_pb2 as pb


@dataclass
class Reconciled:
    """The result of a comparison."""

    say: list[AttemptRef] = field(default_factory=list)
    """Attempts whose current command is to be sent (again): launch, stop, suspend, resume."""
    remind: list[AttemptRef] = field(default_factory=list)
    """Attempts that only have to continue: their launch is repeated because the agent may be new."""
    stop: list[AttemptRef] = field(default_factory=list)
    """Attempts of tasks that continued elsewhere."""
    unknown: list[AttemptRef] = field(default_factory=list)
    reports: list[command.Command] = field(default_factory=list)
    """Commands for the engine that follow from the node's list and from no report."""


def reconcile(state: State, node: NodeId, there: Mapping[AttemptRef, int]) -> Reconciled:
    """Compare the engine's attempts on a node with those that the node reports (attempt -> pb.Attempt.State)."""
    found = Reconciled()
    ours = state.on_node.get(node, {})
    for task in ours.values():
        key = AttemptRef(task.id, task.attempts, task.origin)
        if node in (task.members or {}):  # its part of a gang is over, and the engine knows
            if there.get(key, pb.Attempt.UNKNOWN) not in {pb.Attempt.UNKNOWN, pb.Attempt.ENDED}:
                found.stop.append(key)  # it was given up with its node and did not end there
            continue
        _compare(found, task, key, there.get(key, pb.Attempt.UNKNOWN), node)
    for key, told in there.items():
        held = ours.get(key.task)
        if (held is not None and (held.attempts, held.origin) == key[1:]) or told == pb.Attempt.ENDED:
            continue
        known = state.tasks.get(key.task)
        later = known is not None and known.attempts >= key.attempt
        over = known is None and state.was_ours(key.task)
        placed_here = key.origin in state.origins
        (found.stop if placed_here and (later or over) else found.unknown).append(key)
    return found


def _compare(found: Reconciled, task: OpenTask, key: AttemptRef, told: int, node: NodeId) -> None:
    if told == pb.Attempt.ENDED:
        return
    phase = task.phase
    task_id, attempt, origin = key
    runs = told == pb.Attempt.RUNNING
    if isinstance(phase, Placed):
        if runs:
            found.reports.append(command.ReportStarted(task_id, attempt, node, origin))
        else:
            found.say.append(key)  # a part of a gang that is ready reports it again
    elif isinstance(phase, Stopping | Suspending | Resuming) or (isinstance(phase, Running) and not runs):
        found.say.append(key)
    else:
        assert isinstance(phase, Running | Suspended)
        found.remind.append(key)
