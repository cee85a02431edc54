"""Runs the scheduler in this process and the agent in a child process until stopped."""

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from gpuyard.cli.service.log_output import set_up
from gpuyard.cli.up import command_on
from gpuyard.cli.up.agent_log import refusal_since, size_of
from gpuyard.cli.up.lock_file import InstanceLock
from gpuyard.cli.up.remaining_tasks import running_tasks_message
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.live.agent.inventory import NoSuchInventory
from gpuyard.live.agent.inventory.virtual import read_spec
from gpuyard.live.agent.settings import AgentSettings
from gpuyard.live.control_plane.server import join_token, serve, stop_on_signals
from gpuyard.live.control_plane.settings import DEFAULT_HTTP_ADDRESS, ServerSettings, load_server_settings
from gpuyard.live.sdk import Client, NotAllowed, connect
from gpuyard.live.wire.answers import GpusAnswer
from gpuyard.live.wire.config import WrongSettings, variables
from gpuyard.system.backoff import Backoff
from gpuyard.version import __version__

VIRTUAL_GPUS = "4"
"""Number of virtual GPUs on a machine without real ones."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what an address of all interfaces means from here
GPUS_SECONDS = 60.0
STOP_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 30.0
GOOD_SECONDS = 60.0
"""After an agent ran for this long, the delay before a restart is reset to its minimum."""


DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The inherited limit. The scheduler raises its own; agent and tasks keep this one."""


class UpPlan(msgspec.Struct, frozen=True):
    """The settings and options of a run."""

    settings: ServerSettings
    agent: dict[str, object]
    """The agent's settings file, without the address of the scheduler."""
    folder: Path
    as_json: bool
    take_over: bool = False
    again: str = "gpuyard up"
    """The command that starts it again."""

    @classmethod
    def of(
        cls,
        env: Mapping[str, str],
        folder: Path,
        http_address: str | None,
        grpc_address: str | None,
        virtual_gpus: str | None,
        *,
        take_over: bool = False,
        config: Path | None = None,
        as_json: bool,
        again: str = "gpuyard up",
    ) -> Self:
        """Create from options, environment and a settings file; earlier ones take precedence."""
        logs = folder / "logs"
        said = {**env, "GPUYARD_STORAGE__DATA_DIR": str(folder)}
        if config is None:
            said = {"GPUYARD_LOGGING__FORMAT": "text", **said}
        if http_address is not None:
            said["GPUYARD_SERVER__HTTP_ADDRESS"] = http_address
        if grpc_address is not None:
            said["GPUYARD_SERVER__GRPC_ADDRESS"] = grpc_address
        of_agents = variables(AgentSettings) - variables(ServerSettings)
        try:
            settings = load_server_settings(config, said, not_ours=of_agents)
        except WrongSettings as wrong:
            raise WrongSettings(_keys_to_options(str(wrong))) from None
        if virtual_gpus is not None:
            try:
                read_spec(virtual_gpus)
            except NoSuchInventory as wrong:
                raise WrongSettings(f"--virtual-gpus: {wrong}") from None
        if not settings.logging.output and not settings.system.log_file:
            logging = replace(settings.logging, output=str(logs / "scheduler.log"))
            settings = replace(settings, logging=logging)
        agent: dict[str, object] = {
            "gpu": _gpus_of(settings, virtual_gpus),
            "executor": {"work_dir": str(folder / "agent")},
            "logging": {"format": "text", "output": str(logs / "agent.log")},
        }
        return cls(settings, agent, folder, as_json, take_over, again)


def _gpus_of(settings: ServerSettings, virtual_gpus: str | None) -> dict[str, object]:
    """Return the GPU settings of the scheduler's file and the options, in the format of the agent's file."""
    gpu = settings.gpu
    gpus: dict[str, object] = {
        "devices": gpu.devices,
        "max_memory_percent": gpu.max_memory_percent,
        "max_compute_percent": gpu.max_compute_percent,
        "health_check_interval": float(gpu.check_interval),
    }
    if not gpu.enabled:
        virtual_gpus, gpus["devices"] = "0", []
    if virtual_gpus:
        gpus |= {"detection_method": "virtual", "virtual": virtual_gpus}
    return gpus


def _keys_to_options(sentence: str) -> str:
    """Replace an environment variable in an error message by the option that set it."""
    for name in ("http", "grpc"):
        variable, option = f"Environment variable GPUYARD_SERVER__{name.upper()}_ADDRESS", f"--{name}-address"
        sentence = sentence.replace(f"{variable}: server.{name}_address is ", f"{option} is ").replace(variable, option)
    return sentence


async def run(plan: UpPlan, lock: InstanceLock) -> None:
    """Run until Ctrl-C, TERM, or a failure of the scheduler."""
    settings = plan.settings
    set_up(settings.log_level, settings.logging.format, settings.log_output)
    stop = asyncio.Event()
    stop_on_signals(stop)
    started: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(
            settings,
            default_mode=QuotaMode.BORROW,
            take_over=plan.take_over,
            started=lambda *where: started.set_result(where),
            until=stop,
        )
    )
    either: set[asyncio.Future[Any]] = {serving, started}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    beside: list[asyncio.Task[None]] = []
    if started.done():
        http, port = started.result()
        grpc = _reached_at(settings.grpc_address.host, port)
        lock.write(http, grpc)
        _greet(plan, http, grpc)
        _write_agent_file(plan, grpc)
        logged = size_of(_agent_log(plan))
        beside = [asyncio.create_task(_keep_agent(plan)), asyncio.create_task(_tell_of_gpus(plan, http, logged))]
    try:
        await serving
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    supervisor = plan.folder / "agent" / "supervisor"
    _say(plan, f"Stopped. {running_tasks_message(supervisor, plan.again, command_on(plan.folder, 'down'))}")


def _reached_at(host: str, port: int) -> str:
    host = EVERYWHERE.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- the agent --------------------------------------------------------------------------------------------------------


def _agent_file(plan: UpPlan) -> Path:
    return plan.folder / "agent.yaml"


def _agent_log(plan: UpPlan) -> Path:
    return plan.folder / "logs" / "agent.log"


def _write_agent_file(plan: UpPlan, grpc: str) -> None:
    """Write the agent's settings as JSON, which is valid YAML; only for this user, as they have the join token."""
    scheduler = {"master_address": grpc, "plain": plan.settings.server.plain}
    content = {**plan.agent, "agent": {"join_token": join_token(plan.settings)}, "scheduler": scheduler}
    path = _agent_file(plan)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


async def _keep_agent(plan: UpPlan) -> None:
    """Run the agent and restart it whenever it ends, with increasing delays."""
    backoff = Backoff(0.5, LONGEST_PAUSE_SECONDS)
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        code = await _run_agent(plan)
        if loop.time() - began > GOOD_SECONDS:
            backoff.reset()
        pause = backoff.next()
        reason = f"See {_agent_log(plan)} for the reason."
        _say(plan, f"The agent ended with code {code}; it is restarted in {pause:g} s. {reason}")
        await asyncio.sleep(pause)


async def _run_agent(plan: UpPlan) -> int:
    """Run one agent; end it when cancelled. It has its own session: Ctrl-C reaches only us, the agent stops after us.

    Started by `subprocess` and not by the event loop, whose way of forking makes gRPC print warnings.
    """
    command = (
        sys.executable,
        "-m",
        "gpuyard.cli.up.agent_process",
        str(_agent_file(plan)),
        str(os.getpid()),
        VIRTUAL_GPUS,
    )
    with _agent_log(plan).open("ab") as errors:
        process = subprocess.Popen(  # noqa: S603 - our own module; it takes a millisecond
            command,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, DESCRIPTORS)
    ended = asyncio.create_task(asyncio.to_thread(process.wait))
    try:
        return await asyncio.shield(ended)
    finally:
        if not ended.done():
            await _end(process, ended)


async def _end(process: subprocess.Popen[bytes], ended: "asyncio.Task[int]") -> None:
    process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await asyncio.shield(ended)
    except TimeoutError:
        process.kill()
        await ended


# --- terminal output --------------------------------------------------------------------------------------------------


def _greet(plan: UpPlan, http: str, grpc: str) -> None:
    if plan.as_json:
        standing = {"http": http, "grpc": grpc, "data_dir": str(plan.folder), "pid": os.getpid()}
        print(msgspec.json.encode(standing).decode(), flush=True)
        return
    _say(plan, f"gpuyard {__version__} is running at {http}. Data folder: {plan.folder}.")
    if http != f"http://{DEFAULT_HTTP_ADDRESS}":
        _say(plan, f"In another terminal, run first: export GPUYARD_SERVER={http}")
    _say(plan, "Try: gpuyard run -g 1 -- env | grep CUDA")
    _say(plan, "Ctrl-C stops it; running tasks continue.")


async def _tell_of_gpus(plan: UpPlan, http: str, logged: int) -> None:
    """Print the GPUs of this machine once the agent has joined, or why it may not.

    `logged` is the size of its log before it was started.
    """
    cluster, log, told = connect(http, token=""), _agent_log(plan), ""
    try:
        async with asyncio.timeout(GPUS_SECONDS):
            while not (known := await asyncio.to_thread(_gpus, cluster)):
                refusal = refusal_since(log, logged)
                if refusal != told:
                    told = refusal
                    _say(plan, f"The agent of this machine is refused: {refusal} It has no GPUs until that is solved.")
                await asyncio.sleep(0.2)
    except TimeoutError:
        _say(plan, f"No node has joined yet; see {log}.")
        return
    except NotAllowed:
        _say(plan, "Login is enabled: run `gpuyard login NAME` before other commands.")
        return
    _say(plan, _spoken(known))


def _gpus(cluster: Client) -> GpusAnswer | None:
    """Return all GPUs once there is a node, which may have none; None before that."""
    try:
        return cluster.gpus() if cluster.nodes().nodes else None
    except NotAllowed:
        raise
    except GpuyardError:
        return None  # still starting


def _spoken(known: GpusAnswer) -> str:
    counts: dict[tuple[str, int, bool], int] = {}
    for gpu in known.gpus:
        kind = (gpu.model, gpu.memory, gpu.virtual)
        counts[kind] = counts.get(kind, 0) + 1
    if not counts:
        return "This machine has no GPUs; tasks can request CPUs with --cpus."
    words = [
        f"{count} × {model}, {memory / 1024:.0f} GB{(' (virtual: simulated, no real GPU)' if virtual else '')}"
        for (model, memory, virtual), count in counts.items()
    ]
    return f"GPUs: {'; '.join(words)}."


def _say(plan: UpPlan, sentence: str) -> None:
    """Print a message for the user; with `--json` it goes to standard error."""
    with suppress(OSError):  # the terminal may be closed; the cluster continues
        from gpuyard.cli.shell.messages import localized

        print(localized(sentence), file=sys.stderr if plan.as_json else sys.stdout, flush=True)
