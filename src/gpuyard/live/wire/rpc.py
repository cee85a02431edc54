"""The gRPC service of proto/gpuyard/v1/agents.proto, and the conversion of its messages to internal values.

The service is written by hand: it has seven methods, and a generated one would tie every release to the version of a
generator. The messages are generated (agents_pb2).
"""

import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import grpc
import grpc.aio

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.values import AttemptRef, GpuHealth, NodeId, Outcome, TaskId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.limits import MOST_GPUS_IN_A_NODE

PROTOCOL = 2
SERVICE = "gpuyard.v1.Agents"
CHALLENGE = f"/{SERVICE}/Challenge"
REGISTER = f"/{SERVICE}/Register"
CONNECT = f"/{SERVICE}/Connect"
SEND_LOG = f"/{SERVICE}/SendLog"
FETCH_BLOB = f"/{SERVICE}/FetchBlob"
STORE_BLOB = f"/{SERVICE}/StoreBlob"
CHANNEL = f"/{SERVICE}/Channel"
SESSION = "session"
"""The metadata key that carries the session of `Welcome` on `Connect` and `SendLog`."""
LOG_REQUEST = "log-request"
"""The metadata key that carries the request of a `SendLog` command on the stream that answers it."""
CHANNEL_REQUEST = "channel-request"
"""The same for `OpenChannel`."""
AT_THE_END = 2**53 - 1
"""The offset of a `SendLog` command that asks only for output written from now on."""

MOST_MIB = 1 << 40
MOST_PERCENT = 1000.0
MOST_WATTS = 100_000.0
"""Maximum power of a GPU that is believed."""
MOST_SECONDS = 1e11
"""Since 1970: later times cannot be represented."""
_MEASURED = (
    "utilization_percent",
    "memory_used_mib",
    "temperature_c",
    "power_watts",
    "power_limit_watts",
    "fan_percent",
)
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class AgentsServicer(Protocol):
    """The server side of the service."""

    async def challenge(
        self, request: pb.ChallengeRequest, context: "grpc.aio.ServicerContext[pb.ChallengeRequest, pb.ChallengeAnswer]"
    ) -> pb.ChallengeAnswer:
        """Prove that this is the scheduler of its cluster."""
        ...

    async def register(
        self, request: pb.SignedRegistration, context: "grpc.aio.ServicerContext[pb.SignedRegistration, pb.Welcome]"
    ) -> pb.Welcome:
        """Let a node in, or refuse with a status and a sentence."""
        ...

    def connect(
        self,
        messages: AsyncIterator[pb.AgentMessage],
        context: "grpc.aio.ServicerContext[pb.AgentMessage, pb.SchedulerMessage]",
    ) -> AsyncIterable[pb.SchedulerMessage]:
        """Exchange messages, with one stream in each direction."""
        ...

    async def send_log(
        self, chunks: AsyncIterator[pb.LogChunk], context: "grpc.aio.ServicerContext[pb.LogChunk, pb.LogReceipt]"
    ) -> pb.LogReceipt:
        """Receive the output of an attempt that was requested."""
        ...

    def fetch_blob(
        self, request: pb.BlobRequest, context: "grpc.aio.ServicerContext[pb.BlobRequest, pb.BlobChunk]"
    ) -> AsyncIterable[pb.BlobChunk]:
        """Send a blob that an attempt of the caller needs."""
        ...

    async def store_blob(
        self, chunks: AsyncIterator[pb.BlobChunk], context: "grpc.aio.ServicerContext[pb.BlobChunk, pb.BlobReceipt]"
    ) -> pb.BlobReceipt:
        """Store the result of an attempt of the caller."""
        ...

    def channel(
        self,
        frames: AsyncIterator[pb.ChannelFrame],
        context: "grpc.aio.ServicerContext[pb.ChannelFrame, pb.ChannelFrame]",
    ) -> AsyncIterable[pb.ChannelFrame]:
        """Carry a channel between a client and an attempt."""
        ...


def agents_handler(servicer: AgentsServicer) -> "grpc.GenericRpcHandler[Any, Any]":
    """Return the handler of the service for a `grpc.aio` server."""
    handlers: dict[str, Any] = {
        "Challenge": grpc.unary_unary_rpc_method_handler(
            servicer.challenge, pb.ChallengeRequest.FromString, pb.ChallengeAnswer.SerializeToString
        ),
        "Register": grpc.unary_unary_rpc_method_handler(
            servicer.register, pb.SignedRegistration.FromString, pb.Welcome.SerializeToString
        ),
        "Connect": grpc.stream_stream_rpc_method_handler(
            servicer.connect, pb.AgentMessage.FromString, pb.SchedulerMessage.SerializeToString
        ),
        "SendLog": grpc.stream_unary_rpc_method_handler(
            servicer.send_log, pb.LogChunk.FromString, pb.LogReceipt.SerializeToString
        ),
        "FetchBlob": grpc.unary_stream_rpc_method_handler(
            servicer.fetch_blob, pb.BlobRequest.FromString, pb.BlobChunk.SerializeToString
        ),
        "StoreBlob": grpc.stream_unary_rpc_method_handler(
            servicer.store_blob, pb.BlobChunk.FromString, pb.BlobReceipt.SerializeToString
        ),
        "Channel": grpc.stream_stream_rpc_method_handler(
            servicer.channel, pb.ChannelFrame.FromString, pb.ChannelFrame.SerializeToString
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


class AgentsStub:
    """The agent's side of the service, on a `grpc.aio` channel.

    `challenge` and `register` are awaited; `connect` returns a stream to `write` to and `read` from until
    `grpc.aio.EOF`, as does `channel`; `send_log` takes an iterator of chunks, or `write`. The published types of grpc.aio lack reading and writing, so
    these are plain callables.
    """

    def __init__(self, channel: "grpc.aio.Channel") -> None:
        self.challenge: Callable[..., Awaitable[pb.ChallengeAnswer]] = channel.unary_unary(
            CHALLENGE, pb.ChallengeRequest.SerializeToString, pb.ChallengeAnswer.FromString
        )
        self.register: Callable[..., Awaitable[pb.Welcome]] = channel.unary_unary(
            REGISTER, pb.SignedRegistration.SerializeToString, pb.Welcome.FromString
        )
        self.connect: Callable[..., Any] = channel.stream_stream(
            CONNECT, pb.AgentMessage.SerializeToString, pb.SchedulerMessage.FromString
        )
        self.send_log: Callable[..., Any] = channel.stream_unary(
            SEND_LOG, pb.LogChunk.SerializeToString, pb.LogReceipt.FromString
        )
        self.fetch_blob: Callable[..., Any] = channel.unary_stream(
            FETCH_BLOB, pb.BlobRequest.SerializeToString, pb.BlobChunk.FromString
        )
        self.store_blob: Callable[..., Any] = channel.stream_unary(
            STORE_BLOB, pb.BlobChunk.SerializeToString, pb.BlobReceipt.FromString
        )
        self.channel: Callable[..., Any] = channel.stream_stream(
            CHANNEL, pb.ChannelFrame.SerializeToString, pb.ChannelFrame.FromString
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
"""How an attempt ended. A fenced one counts as lost, like its node: it did not fail and was not stopped."""

HEALTHS: dict[int, GpuHealth] = {
    pb.GpuUse.OK: GpuHealth.OK,
    pb.GpuUse.EXTERNAL: GpuHealth.EXTERNAL,
    pb.GpuUse.OFFLINE: GpuHealth.OFFLINE,
}


def attempt_of(said: pb.Attempt | pb.Report | pb.Command | pb.Stray) -> AttemptRef:
    """Return the attempt that a message is about."""
    return AttemptRef(TaskId(said.task), said.attempt, said.origin)


def outcome_of(outcome: int) -> Outcome:
    """Convert an outcome. One that only a newer agent knows counts as lost."""
    return OUTCOMES.get(outcome, Outcome.LOST)


def actual_of(ended: pb.Ended) -> Actual | None:
    """Return a node's measurements of an attempt; None if there are none. Impossible values are left out."""
    peak = ended.gpu_memory_peak_mib if ended.HasField("gpu_memory_peak_mib") else None
    busy = ended.gpu_utilization if ended.HasField("gpu_utilization") else None
    if peak is not None and peak > MOST_MIB:
        peak = None
    if busy is not None and not 0.0 <= busy <= MOST_PERCENT:
        busy = None
    idle = ended.gpu_idle_fraction if ended.HasField("gpu_idle_fraction") else None
    if idle is not None and not 0.0 <= idle <= 1.0:
        idle = None
    watts = ended.gpu_power_watts if ended.HasField("gpu_power_watts") else None
    if watts is not None and not 0.0 <= watts <= MOST_WATTS:
        watts = None
    actual = Actual(peak, busy, idle, watts)
    return None if actual == Actual() else actual


def health_of(health: int) -> GpuHealth:
    """Convert a health. One that only a newer agent knows counts as offline, so that the GPU is not assigned."""
    return HEALTHS.get(health, GpuHealth.OFFLINE)


def node_spec_of(node: pb.Node) -> NodeSpec:
    """Convert the description of a node. Raise `WrongRequest` if it is impossible."""
    if not _NODE_NAME.fullmatch(node.id):
        message = (
            f"The node id {node.id[:60]!r} is not valid; agent.id must have 1 to 128 letters, digits, "
            "dots, dashes and underscores and begin with a letter or digit."
        )
        raise WrongRequest("WrongNode", message, "node.id")
    if len(node.gpus) > MOST_GPUS_IN_A_NODE:
        message = f"Node {node.id} reports {len(node.gpus)} GPUs; the maximum is {MOST_GPUS_IN_A_NODE}."
        raise WrongRequest("WrongNode", message, "node.gpus")
    for index, gpu in enumerate(node.gpus):
        if not gpu.model.strip() or not gpu.memory_mib:
            message = f"GPU {index} of node {node.id} reports no model or no memory; check it with nvidia-smi."
            raise WrongRequest("WrongNode", message, f"node.gpus[{index}]")
    gpus = tuple(
        Gpu(
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            uuid=gpu.uuid,
            numa=gpu.numa,
            nvlink=gpu.nvlink if gpu.HasField("nvlink") else None,
            virtual=gpu.virtual,
        )
        for gpu in node.gpus
    )
    return NodeSpec(NodeId(node.id), gpus, node.cpus, node.memory_mib, tuple(sorted(node.labels.items())))


def heartbeat_of(beat: pb.Heartbeat) -> pb.Heartbeat:
    """Correct a heartbeat in place: numbers that are not finite or impossible are removed or set to 0."""
    if not 0.0 <= beat.at <= MOST_SECONDS:
        beat.at = 0.0
    if not 0.0 <= beat.round_trip_seconds <= MOST_SECONDS:
        beat.ClearField("round_trip_seconds")
    host = beat.host
    if not 0.0 <= host.cpu_percent <= MOST_PERCENT * MOST_GPUS_IN_A_NODE:
        host.cpu_percent = 0.0
    if not 0.0 <= host.load <= MOST_MIB:
        host.load = 0.0
    for name in ("memory_used_mib", "memory_mib", "disk_free_mib"):
        if getattr(host, name) > MOST_MIB:
            setattr(host, name, 0)
    for use in beat.gpus:
        for name in _MEASURED:
            if use.HasField(name) and not -MOST_MIB <= getattr(use, name) <= MOST_MIB:
                use.ClearField(name)
    return beat
