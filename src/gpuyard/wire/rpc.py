"""The gRPC service of proto/gpuyard/v1/agents.proto, and its messages as the values we talk about.

The service is written by hand: it is three methods, and a generated one would tie every release to the version of a
generator. The messages are generated (agents_pb2).
"""

import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import grpc
import grpc.aio

from gpuyard.domain.actual import Actual
from gpuyard.domain.node import Gpu, NodeSpec
from gpuyard.domain.values import GpuHealth, NodeId, Outcome
from gpuyard.wire import agents_pb2 as pb
from gpuyard.wire.strict import WrongRequest

PROTOCOL = 1
SERVICE = "gpuyard.v1.Agents"
REGISTER = f"/{SERVICE}/Register"
CONNECT = f"/{SERVICE}/Connect"
SEND_LOG = f"/{SERVICE}/SendLog"
SESSION = "session"
"""The metadata key that carries the welcome's session on `Connect` and `SendLog`."""

MOST_GPUS_IN_A_NODE = 1024
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class AgentsServicer(Protocol):
    """Who answers agents."""

    async def register(
        self, request: pb.Registration, context: "grpc.aio.ServicerContext[pb.Registration, pb.Welcome]"
    ) -> pb.Welcome:
        """Let a node in, or refuse with a status and a sentence."""
        ...

    def connect(
        self,
        messages: AsyncIterator[pb.AgentMessage],
        context: "grpc.aio.ServicerContext[pb.AgentMessage, pb.SchedulerMessage]",
    ) -> AsyncIterable[pb.SchedulerMessage]:
        """The one stream each way."""
        ...

    async def send_log(
        self, chunks: AsyncIterator[pb.LogChunk], context: "grpc.aio.ServicerContext[pb.LogChunk, pb.LogReceipt]"
    ) -> pb.LogReceipt:
        """Output of an attempt that somebody asked for."""
        ...


def agents_handler(servicer: AgentsServicer) -> "grpc.GenericRpcHandler[Any, Any]":
    """What a `grpc.aio` server is given to speak the service."""
    handlers: dict[str, Any] = {
        "Register": grpc.unary_unary_rpc_method_handler(
            servicer.register, pb.Registration.FromString, pb.Welcome.SerializeToString
        ),
        "Connect": grpc.stream_stream_rpc_method_handler(
            servicer.connect, pb.AgentMessage.FromString, pb.SchedulerMessage.SerializeToString
        ),
        "SendLog": grpc.stream_unary_rpc_method_handler(
            servicer.send_log, pb.LogChunk.FromString, pb.LogReceipt.SerializeToString
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


class AgentsStub:
    """The agent's side of the service, on a `grpc.aio` channel.

    `register` is awaited; `connect` gives a stream to `write` to and `read` from until `grpc.aio.EOF`; `send_log` takes
    an iterator of chunks. The published types of grpc.aio do not know reading and writing, so these are plain callables.
    """

    def __init__(self, channel: "grpc.aio.Channel") -> None:
        self.register: Callable[..., Awaitable[pb.Welcome]] = channel.unary_unary(
            REGISTER, pb.Registration.SerializeToString, pb.Welcome.FromString
        )
        self.connect: Callable[..., Any] = channel.stream_stream(
            CONNECT, pb.AgentMessage.SerializeToString, pb.SchedulerMessage.FromString
        )
        self.send_log: Callable[..., Any] = channel.stream_unary(
            SEND_LOG, pb.LogChunk.SerializeToString, pb.LogReceipt.FromString
        )


# --- messages to values -------------------------------------------------------------------------------------------------

OUTCOMES: dict[int, Outcome] = {
    pb.Ended.UNKNOWN: Outcome.LOST,
    pb.Ended.SUCCEEDED: Outcome.SUCCEEDED,
    pb.Ended.FAILED: Outcome.FAILED,
    pb.Ended.STOPPED: Outcome.STOPPED,
    pb.Ended.LOST: Outcome.LOST,
    pb.Ended.NOT_LAUNCHED: Outcome.NOT_LAUNCHED,
    pb.Ended.TIMED_OUT: Outcome.TIMED_OUT,
    pb.Ended.FENCED: Outcome.LOST,
    pb.Ended.OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY,
}
"""How an attempt ended. One that was fenced is lost as its node was: it did not fail and nobody stopped it."""

HEALTHS: dict[int, GpuHealth] = {
    pb.GpuUse.OK: GpuHealth.OK,
    pb.GpuUse.EXTERNAL: GpuHealth.EXTERNAL,
    pb.GpuUse.OFFLINE: GpuHealth.OFFLINE,
}


def outcome_of(outcome: int) -> Outcome:
    """An end a newer agent invented is an end we can not tell the kind of: lost."""
    return OUTCOMES.get(outcome, Outcome.LOST)


def actual_of(ended: pb.Ended) -> Actual | None:
    """What a node has measured of an attempt; none: nothing."""
    peak = ended.gpu_memory_peak_mib if ended.HasField("gpu_memory_peak_mib") else None
    busy = ended.gpu_utilization if ended.HasField("gpu_utilization") else None
    return None if peak is None and busy is None else Actual(peak, busy)


def health_of(health: int) -> GpuHealth:
    """A state a newer agent invented is not one in which we would give the GPU away."""
    return HEALTHS.get(health, GpuHealth.OFFLINE)


def node_spec_of(node: pb.Node) -> NodeSpec:
    """What an agent says its node has; a sentence if that can not be."""
    if not _NODE_NAME.fullmatch(node.id):
        message = (
            f"The node id {node.id[:60]!r} can not be used; agent.id takes 1 to 128 letters, digits, dots, dashes and "
            "underscores and begins with a letter or digit."
        )
        raise WrongRequest("WrongNode", message, "node.id")
    if len(node.gpus) > MOST_GPUS_IN_A_NODE:
        message = f"Node {node.id} reports {len(node.gpus)} GPUs; {MOST_GPUS_IN_A_NODE} is the most a node can have."
        raise WrongRequest("WrongNode", message, "node.gpus")
    for index, card in enumerate(node.gpus):
        if not card.model.strip() or not card.memory_mib:
            message = f"GPU {index} of node {node.id} has no model or no memory; look at it with nvidia-smi."
            raise WrongRequest("WrongNode", message, f"node.gpus[{index}]")
    gpus = tuple(
        Gpu(
            model=card.model,
            memory_mib=card.memory_mib,
            uuid=card.uuid,
            numa=card.numa,
            nvlink=card.nvlink if card.HasField("nvlink") else None,
            virtual=card.virtual,
        )
        for card in node.gpus
    )
    return NodeSpec(NodeId(node.id), gpus, node.cpus, node.memory_mib, tuple(sorted(node.labels.items())))


def node_of(spec: NodeSpec) -> pb.Node:
    """The same the other way round, for agents."""
    cards = [
        pb.Gpu(
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            uuid=gpu.uuid,
            numa=gpu.numa,
            nvlink=gpu.nvlink,
            virtual=gpu.virtual,
        )
        for gpu in spec.gpus
    ]
    return pb.Node(id=spec.id, gpus=cards, cpus=spec.cpus, memory_mib=spec.memory_mib, labels=dict(spec.labels))
