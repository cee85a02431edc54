from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChallengeRequest(_message.Message):
    __slots__ = ("protocol", "node", "nonce")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    node: str
    nonce: bytes
    def __init__(self, protocol: _Optional[int] = ..., node: _Optional[str] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class ChallengeAnswer(_message.Message):
    __slots__ = ("protocol", "nonce", "proof", "yard", "epoch", "origin", "version")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    YARD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    nonce: bytes
    proof: bytes
    yard: str
    epoch: int
    origin: int
    version: str
    def __init__(self, protocol: _Optional[int] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., yard: _Optional[str] = ..., epoch: _Optional[int] = ..., origin: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class SignedRegistration(_message.Message):
    __slots__ = ("protocol", "nonce", "agent_nonce", "body", "proof")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    AGENT_NONCE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    nonce: bytes
    agent_nonce: bytes
    body: bytes
    proof: bytes
    def __init__(self, protocol: _Optional[int] = ..., nonce: _Optional[bytes] = ..., agent_nonce: _Optional[bytes] = ..., body: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("version", "node", "instance", "yard", "seq", "epoch", "attempts", "address", "highest_task", "boot", "origin", "epoch_proof", "hash", "channels")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    YARD_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_TASK_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_PROOF_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    version: str
    node: Node
    instance: str
    yard: str
    seq: int
    epoch: int
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    address: str
    highest_task: int
    boot: str
    origin: int
    epoch_proof: bytes
    hash: str
    channels: bool
    def __init__(self, version: _Optional[str] = ..., node: _Optional[_Union[Node, _Mapping]] = ..., instance: _Optional[str] = ..., yard: _Optional[str] = ..., seq: _Optional[int] = ..., epoch: _Optional[int] = ..., attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., address: _Optional[str] = ..., highest_task: _Optional[int] = ..., boot: _Optional[str] = ..., origin: _Optional[int] = ..., epoch_proof: _Optional[bytes] = ..., hash: _Optional[str] = ..., channels: _Optional[bool] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("id", "gpus", "cpus", "memory_mib", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    id: str
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    cpus: int
    memory_mib: int
    labels: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., cpus: _Optional[int] = ..., memory_mib: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("model", "memory_mib", "uuid", "numa", "nvlink", "virtual", "pci", "driver")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NUMA_FIELD_NUMBER: _ClassVar[int]
    NVLINK_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_FIELD_NUMBER: _ClassVar[int]
    PCI_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    model: str
    memory_mib: int
    uuid: str
    numa: int
    nvlink: int
    virtual: bool
    pci: str
    driver: str
    def __init__(self, model: _Optional[str] = ..., memory_mib: _Optional[int] = ..., uuid: _Optional[str] = ..., numa: _Optional[int] = ..., nvlink: _Optional[int] = ..., virtual: _Optional[bool] = ..., pci: _Optional[str] = ..., driver: _Optional[str] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("task", "attempt", "state", "port", "origin", "gpus", "share")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Attempt.State]
        PREPARED: _ClassVar[Attempt.State]
        RUNNING: _ClassVar[Attempt.State]
        SUSPENDED: _ClassVar[Attempt.State]
        ENDED: _ClassVar[Attempt.State]
    UNKNOWN: Attempt.State
    PREPARED: Attempt.State
    RUNNING: Attempt.State
    SUSPENDED: Attempt.State
    ENDED: Attempt.State
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    task: int
    attempt: int
    state: Attempt.State
    port: int
    origin: int
    gpus: _containers.RepeatedScalarFieldContainer[int]
    share: bool
    def __init__(self, task: _Optional[int] = ..., attempt: _Optional[int] = ..., state: _Optional[_Union[Attempt.State, str]] = ..., port: _Optional[int] = ..., origin: _Optional[int] = ..., gpus: _Optional[_Iterable[int]] = ..., share: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("yard", "epoch", "seq", "session", "heartbeat_seconds", "offline_after_seconds", "version", "origin", "epoch_proof", "hash", "voting")
    YARD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_PROOF_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    VOTING_FIELD_NUMBER: _ClassVar[int]
    yard: str
    epoch: int
    seq: int
    session: str
    heartbeat_seconds: float
    offline_after_seconds: float
    version: str
    origin: int
    epoch_proof: bytes
    hash: str
    voting: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, yard: _Optional[str] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., session: _Optional[str] = ..., heartbeat_seconds: _Optional[float] = ..., offline_after_seconds: _Optional[float] = ..., version: _Optional[str] = ..., origin: _Optional[int] = ..., epoch_proof: _Optional[bytes] = ..., hash: _Optional[str] = ..., voting: _Optional[_Iterable[str]] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("reports", "heartbeat", "goodbye")
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    heartbeat: Heartbeat
    goodbye: Goodbye
    def __init__(self, reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("back_within_seconds",)
    BACK_WITHIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    back_within_seconds: float
    def __init__(self, back_within_seconds: _Optional[float] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("number", "task", "attempt", "origin", "seconds_ago", "prepared", "started", "ended", "suspended", "resumed", "not_suspended", "not_resumed")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SECONDS_AGO_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    NOT_SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    NOT_RESUMED_FIELD_NUMBER: _ClassVar[int]
    number: int
    task: int
    attempt: int
    origin: int
    seconds_ago: float
    prepared: Prepared
    started: Started
    ended: Ended
    suspended: Suspended
    resumed: Resumed
    not_suspended: Suspended
    not_resumed: Resumed
    def __init__(self, number: _Optional[int] = ..., task: _Optional[int] = ..., attempt: _Optional[int] = ..., origin: _Optional[int] = ..., seconds_ago: _Optional[float] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., suspended: _Optional[_Union[Suspended, _Mapping]] = ..., resumed: _Optional[_Union[Resumed, _Mapping]] = ..., not_suspended: _Optional[_Union[Suspended, _Mapping]] = ..., not_resumed: _Optional[_Union[Resumed, _Mapping]] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("port",)
    PORT_FIELD_NUMBER: _ClassVar[int]
    port: int
    def __init__(self, port: _Optional[int] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("at", "pid")
    AT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    at: float
    pid: int
    def __init__(self, at: _Optional[float] = ..., pid: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("outcome", "exit_code", "signal", "at", "message", "gpu_memory_peak_mib", "gpu_utilization", "gpu_idle_fraction", "gpu_power_watts", "result")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Ended.Outcome]
        SUCCEEDED: _ClassVar[Ended.Outcome]
        FAILED: _ClassVar[Ended.Outcome]
        STOPPED: _ClassVar[Ended.Outcome]
        LOST: _ClassVar[Ended.Outcome]
        NOT_LAUNCHED: _ClassVar[Ended.Outcome]
        TIMED_OUT: _ClassVar[Ended.Outcome]
        FENCED: _ClassVar[Ended.Outcome]
        OUT_OF_MEMORY: _ClassVar[Ended.Outcome]
    UNKNOWN: Ended.Outcome
    SUCCEEDED: Ended.Outcome
    FAILED: Ended.Outcome
    STOPPED: Ended.Outcome
    LOST: Ended.Outcome
    NOT_LAUNCHED: Ended.Outcome
    TIMED_OUT: Ended.Outcome
    FENCED: Ended.Outcome
    OUT_OF_MEMORY: Ended.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_PEAK_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    GPU_IDLE_FRACTION_FIELD_NUMBER: _ClassVar[int]
    GPU_POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    outcome: Ended.Outcome
    exit_code: int
    signal: int
    at: float
    message: str
    gpu_memory_peak_mib: int
    gpu_utilization: float
    gpu_idle_fraction: float
    gpu_power_watts: float
    result: str
    def __init__(self, outcome: _Optional[_Union[Ended.Outcome, str]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., at: _Optional[float] = ..., message: _Optional[str] = ..., gpu_memory_peak_mib: _Optional[int] = ..., gpu_utilization: _Optional[float] = ..., gpu_idle_fraction: _Optional[float] = ..., gpu_power_watts: _Optional[float] = ..., result: _Optional[str] = ...) -> None: ...

class Suspended(_message.Message):
    __slots__ = ("round", "message")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    round: int
    message: str
    def __init__(self, round: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("round", "message")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    round: int
    message: str
    def __init__(self, round: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("at", "host", "gpus", "strays", "supervisor_silent_seconds", "checkpoints", "round_trip_seconds")
    AT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    STRAYS_FIELD_NUMBER: _ClassVar[int]
    SUPERVISOR_SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    at: float
    host: Host
    gpus: _containers.RepeatedCompositeFieldContainer[GpuUse]
    strays: _containers.RepeatedCompositeFieldContainer[Stray]
    supervisor_silent_seconds: float
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    round_trip_seconds: float
    def __init__(self, at: _Optional[float] = ..., host: _Optional[_Union[Host, _Mapping]] = ..., gpus: _Optional[_Iterable[_Union[GpuUse, _Mapping]]] = ..., strays: _Optional[_Iterable[_Union[Stray, _Mapping]]] = ..., supervisor_silent_seconds: _Optional[float] = ..., checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., round_trip_seconds: _Optional[float] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("task", "submitted_us", "empty", "idle_seconds")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_US_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    task: int
    submitted_us: int
    empty: bool
    idle_seconds: float
    def __init__(self, task: _Optional[int] = ..., submitted_us: _Optional[int] = ..., empty: _Optional[bool] = ..., idle_seconds: _Optional[float] = ...) -> None: ...

class Host(_message.Message):
    __slots__ = ("cpu_percent", "memory_used_mib", "memory_mib", "load", "disk_free_mib")
    CPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_MIB_FIELD_NUMBER: _ClassVar[int]
    cpu_percent: float
    memory_used_mib: int
    memory_mib: int
    load: float
    disk_free_mib: int
    def __init__(self, cpu_percent: _Optional[float] = ..., memory_used_mib: _Optional[int] = ..., memory_mib: _Optional[int] = ..., load: _Optional[float] = ..., disk_free_mib: _Optional[int] = ...) -> None: ...

class GpuUse(_message.Message):
    __slots__ = ("index", "health", "why", "utilization_percent", "memory_used_mib", "temperature_c", "power_watts", "power_limit_watts", "fan_percent", "processes")
    class Health(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[GpuUse.Health]
        EXTERNAL: _ClassVar[GpuUse.Health]
        OFFLINE: _ClassVar[GpuUse.Health]
    OK: GpuUse.Health
    EXTERNAL: GpuUse.Health
    OFFLINE: GpuUse.Health
    INDEX_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_WATTS_FIELD_NUMBER: _ClassVar[int]
    FAN_PERCENT_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    index: int
    health: GpuUse.Health
    why: str
    utilization_percent: float
    memory_used_mib: int
    temperature_c: float
    power_watts: float
    power_limit_watts: float
    fan_percent: float
    processes: _containers.RepeatedCompositeFieldContainer[GpuProcess]
    def __init__(self, index: _Optional[int] = ..., health: _Optional[_Union[GpuUse.Health, str]] = ..., why: _Optional[str] = ..., utilization_percent: _Optional[float] = ..., memory_used_mib: _Optional[int] = ..., temperature_c: _Optional[float] = ..., power_watts: _Optional[float] = ..., power_limit_watts: _Optional[float] = ..., fan_percent: _Optional[float] = ..., processes: _Optional[_Iterable[_Union[GpuProcess, _Mapping]]] = ...) -> None: ...

class GpuProcess(_message.Message):
    __slots__ = ("pid", "memory_mib", "user", "display", "task")
    PID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    pid: int
    memory_mib: int
    user: str
    display: bool
    task: int
    def __init__(self, pid: _Optional[int] = ..., memory_mib: _Optional[int] = ..., user: _Optional[str] = ..., display: _Optional[bool] = ..., task: _Optional[int] = ...) -> None: ...

class Stray(_message.Message):
    __slots__ = ("task", "attempt", "since", "origin")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    task: int
    attempt: int
    since: float
    origin: int
    def __init__(self, task: _Optional[int] = ..., attempt: _Optional[int] = ..., since: _Optional[float] = ..., origin: _Optional[int] = ...) -> None: ...

class SchedulerMessage(_message.Message):
    __slots__ = ("epoch", "seq", "received", "commands", "heard", "patience_seconds", "hash", "goodbye")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    received: int
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    heard: float
    patience_seconds: float
    hash: str
    goodbye: bool
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., received: _Optional[int] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ..., heard: _Optional[float] = ..., patience_seconds: _Optional[float] = ..., hash: _Optional[str] = ..., goodbye: _Optional[bool] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("task", "attempt", "origin", "launch", "start", "stop", "suspend", "resume", "send_log", "stray", "extend", "remove_checkpoint", "open_channel", "run_command")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SUSPEND_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    SEND_LOG_FIELD_NUMBER: _ClassVar[int]
    STRAY_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    REMOVE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    OPEN_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    RUN_COMMAND_FIELD_NUMBER: _ClassVar[int]
    task: int
    attempt: int
    origin: int
    launch: Launch
    start: Start
    stop: Stop
    suspend: Suspend
    resume: Resume
    send_log: SendLog
    stray: Stray
    extend: Extend
    remove_checkpoint: RemoveCheckpoint
    open_channel: OpenChannel
    run_command: RunCommand
    def __init__(self, task: _Optional[int] = ..., attempt: _Optional[int] = ..., origin: _Optional[int] = ..., launch: _Optional[_Union[Launch, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., suspend: _Optional[_Union[Suspend, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., send_log: _Optional[_Union[SendLog, _Mapping]] = ..., stray: _Optional[_Union[Stray, _Mapping]] = ..., extend: _Optional[_Union[Extend, _Mapping]] = ..., remove_checkpoint: _Optional[_Union[RemoveCheckpoint, _Mapping]] = ..., open_channel: _Optional[_Union[OpenChannel, _Mapping]] = ..., run_command: _Optional[_Union[RunCommand, _Mapping]] = ...) -> None: ...

class Launch(_message.Message):
    __slots__ = ("lease", "argv", "shell", "env", "secrets", "work_dir", "gpus", "tenant", "user", "by_owner", "timeout_seconds", "fence", "wait", "milli", "gpu_memory_mib", "array_index", "cpus", "memory_mib", "name", "run_as", "request_id", "grace_seconds", "submitted_us", "restart_reason", "snapshot", "files", "store_result", "submit_host", "environment_python", "umask", "limits", "console", "clients")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    SHELL_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    WORK_DIR_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    BY_OWNER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    MILLI_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    ARRAY_INDEX_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_AS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_US_FIELD_NUMBER: _ClassVar[int]
    RESTART_REASON_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    STORE_RESULT_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_HOST_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_PYTHON_FIELD_NUMBER: _ClassVar[int]
    UMASK_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CONSOLE_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    lease: bool
    argv: _containers.RepeatedScalarFieldContainer[str]
    shell: str
    env: _containers.ScalarMap[str, str]
    secrets: _containers.ScalarMap[str, str]
    work_dir: str
    gpus: _containers.RepeatedScalarFieldContainer[int]
    tenant: str
    user: str
    by_owner: bool
    timeout_seconds: float
    fence: bool
    wait: bool
    milli: int
    gpu_memory_mib: int
    array_index: int
    cpus: int
    memory_mib: int
    name: str
    run_as: str
    request_id: str
    grace_seconds: float
    submitted_us: int
    restart_reason: str
    snapshot: str
    files: _containers.ScalarMap[str, str]
    store_result: bool
    submit_host: str
    environment_python: str
    umask: int
    limits: _containers.ScalarMap[str, int]
    console: Console
    clients: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lease: _Optional[bool] = ..., argv: _Optional[_Iterable[str]] = ..., shell: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., secrets: _Optional[_Mapping[str, str]] = ..., work_dir: _Optional[str] = ..., gpus: _Optional[_Iterable[int]] = ..., tenant: _Optional[str] = ..., user: _Optional[str] = ..., by_owner: _Optional[bool] = ..., timeout_seconds: _Optional[float] = ..., fence: _Optional[bool] = ..., wait: _Optional[bool] = ..., milli: _Optional[int] = ..., gpu_memory_mib: _Optional[int] = ..., array_index: _Optional[int] = ..., cpus: _Optional[int] = ..., memory_mib: _Optional[int] = ..., name: _Optional[str] = ..., run_as: _Optional[str] = ..., request_id: _Optional[str] = ..., grace_seconds: _Optional[float] = ..., submitted_us: _Optional[int] = ..., restart_reason: _Optional[str] = ..., snapshot: _Optional[str] = ..., files: _Optional[_Mapping[str, str]] = ..., store_result: _Optional[bool] = ..., submit_host: _Optional[str] = ..., environment_python: _Optional[str] = ..., umask: _Optional[int] = ..., limits: _Optional[_Mapping[str, int]] = ..., console: _Optional[_Union[Console, _Mapping]] = ..., clients: _Optional[_Iterable[str]] = ...) -> None: ...

class Console(_message.Message):
    __slots__ = ("terminal", "columns", "rows", "linger_seconds")
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LINGER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    terminal: bool
    columns: int
    rows: int
    linger_seconds: float
    def __init__(self, terminal: _Optional[bool] = ..., columns: _Optional[int] = ..., rows: _Optional[int] = ..., linger_seconds: _Optional[float] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("master_addr", "master_port", "node_rank", "nodes", "rank", "world_size")
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    master_addr: str
    master_port: int
    node_rank: int
    nodes: int
    rank: int
    world_size: int
    def __init__(self, master_addr: _Optional[str] = ..., master_port: _Optional[int] = ..., node_rank: _Optional[int] = ..., nodes: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("why", "grace_seconds")
    WHY_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    why: str
    grace_seconds: float
    def __init__(self, why: _Optional[str] = ..., grace_seconds: _Optional[float] = ...) -> None: ...

class Suspend(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("gpus", "round")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedScalarFieldContainer[int]
    round: int
    def __init__(self, gpus: _Optional[_Iterable[int]] = ..., round: _Optional[int] = ...) -> None: ...

class RemoveCheckpoint(_message.Message):
    __slots__ = ("submitted_us",)
    SUBMITTED_US_FIELD_NUMBER: _ClassVar[int]
    submitted_us: int
    def __init__(self, submitted_us: _Optional[int] = ...) -> None: ...

class Extend(_message.Message):
    __slots__ = ("seconds_left",)
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    seconds_left: float
    def __init__(self, seconds_left: _Optional[float] = ...) -> None: ...

class RunCommand(_message.Message):
    __slots__ = ("request", "launch", "env", "timeout_seconds")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    request: str
    launch: Launch
    env: _containers.ScalarMap[str, str]
    timeout_seconds: float
    def __init__(self, request: _Optional[str] = ..., launch: _Optional[_Union[Launch, _Mapping]] = ..., env: _Optional[_Mapping[str, str]] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class CommandResult(_message.Message):
    __slots__ = ("failed",)
    FAILED_FIELD_NUMBER: _ClassVar[int]
    failed: str
    def __init__(self, failed: _Optional[str] = ...) -> None: ...

class SendLog(_message.Message):
    __slots__ = ("request", "offset", "limit", "follow", "search", "since", "until", "timestamps")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    request: str
    offset: int
    limit: int
    follow: bool
    search: LogSearch
    since: float
    until: float
    timestamps: bool
    def __init__(self, request: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., follow: _Optional[bool] = ..., search: _Optional[_Union[LogSearch, _Mapping]] = ..., since: _Optional[float] = ..., until: _Optional[float] = ..., timestamps: _Optional[bool] = ...) -> None: ...

class LogSearch(_message.Message):
    __slots__ = ("text", "match_case", "context", "most")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MATCH_CASE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    text: str
    match_case: bool
    context: int
    most: int
    def __init__(self, text: _Optional[str] = ..., match_case: _Optional[bool] = ..., context: _Optional[int] = ..., most: _Optional[int] = ...) -> None: ...

class LogMatch(_message.Message):
    __slots__ = ("offset", "line", "text", "before", "after")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    offset: int
    line: int
    text: bytes
    before: _containers.RepeatedScalarFieldContainer[bytes]
    after: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, offset: _Optional[int] = ..., line: _Optional[int] = ..., text: _Optional[bytes] = ..., before: _Optional[_Iterable[bytes]] = ..., after: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LogMatches(_message.Message):
    __slots__ = ("matches", "next_offset")
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[LogMatch]
    next_offset: int
    def __init__(self, matches: _Optional[_Iterable[_Union[LogMatch, _Mapping]]] = ..., next_offset: _Optional[int] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("request", "data", "offset", "error", "found", "ran", "timed")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    RAN_FIELD_NUMBER: _ClassVar[int]
    TIMED_FIELD_NUMBER: _ClassVar[int]
    request: str
    data: bytes
    offset: int
    error: str
    found: LogMatches
    ran: CommandResult
    timed: bool
    def __init__(self, request: _Optional[str] = ..., data: _Optional[bytes] = ..., offset: _Optional[int] = ..., error: _Optional[str] = ..., found: _Optional[_Union[LogMatches, _Mapping]] = ..., ran: _Optional[_Union[CommandResult, _Mapping]] = ..., timed: _Optional[bool] = ...) -> None: ...

class LogReceipt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BlobRequest(_message.Message):
    __slots__ = ("task", "attempt", "origin", "sha256")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    task: int
    attempt: int
    origin: int
    sha256: str
    def __init__(self, task: _Optional[int] = ..., attempt: _Optional[int] = ..., origin: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class BlobChunk(_message.Message):
    __slots__ = ("data", "about", "size")
    DATA_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    about: BlobRequest
    size: int
    def __init__(self, data: _Optional[bytes] = ..., about: _Optional[_Union[BlobRequest, _Mapping]] = ..., size: _Optional[int] = ...) -> None: ...

class BlobReceipt(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class OpenChannel(_message.Message):
    __slots__ = ("request", "kind", "write", "port", "session", "argv", "env", "console")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[OpenChannel.Kind]
        CONSOLE: _ClassVar[OpenChannel.Kind]
        SHELL: _ClassVar[OpenChannel.Kind]
        PORT: _ClassVar[OpenChannel.Kind]
        PORTS: _ClassVar[OpenChannel.Kind]
    UNKNOWN: OpenChannel.Kind
    CONSOLE: OpenChannel.Kind
    SHELL: OpenChannel.Kind
    PORT: OpenChannel.Kind
    PORTS: OpenChannel.Kind
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CONSOLE_FIELD_NUMBER: _ClassVar[int]
    request: str
    kind: OpenChannel.Kind
    write: bool
    port: int
    session: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    console: Console
    def __init__(self, request: _Optional[str] = ..., kind: _Optional[_Union[OpenChannel.Kind, str]] = ..., write: _Optional[bool] = ..., port: _Optional[int] = ..., session: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., console: _Optional[_Union[Console, _Mapping]] = ...) -> None: ...

class ChannelFrame(_message.Message):
    __slots__ = ("frame", "error", "code", "end")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    frame: bytes
    error: str
    code: str
    end: bool
    def __init__(self, frame: _Optional[bytes] = ..., error: _Optional[str] = ..., code: _Optional[str] = ..., end: _Optional[bool] = ...) -> None: ...
