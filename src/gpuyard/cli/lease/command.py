"""`gpuyard lease -g 1 -- COMMAND`: the command runs here, on leased GPUs of this machine, and the lease ends with it."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any

from gpuyard.cli.input.suggestions import CommandGroup
from gpuyard.cli.input.task_options import SCRIPT_ENDINGS
from gpuyard.core.domain.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, Lease

COMMAND = "gpuyard.lease_command"
"""In the context of a call: the words after `--`."""
LEASE_VARIABLE = "GPUYARD_LEASE_ID"
"""Names the lease of a shell or command."""
STOP_SECONDS = 10.0
NOT_FOUND, NOT_EXECUTABLE, SIGNALLED = 127, 126, 128


class LeaseOnOtherNode(GpuyardError):
    """The leased GPUs are on another machine."""


class LeaseGroup(CommandGroup):
    """Takes what follows `--` as a command, unless a subcommand precedes it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the words of the command aside."""
        if "--" in args:
            place = args.index("--")
            head, command = args[:place], args[place + 1 :]
            _, words, _ = self.make_parser(ctx).parse_args(args=list(head))
            if not words:
                if not command:
                    ctx.fail("a command is missing after --")
                ctx.meta[COMMAND] = command
                args = head
        return super().parse_args(ctx, args)

    def command_hint(self, typed: str) -> str | None:
        """Return how a program is run on leased GPUs, instead of the name of one."""
        from shutil import which

        if "/" not in typed and not typed.endswith(SCRIPT_ENDINGS) and which(typed) is None:
            return None
        return f"to run a command on the leased GPUs, put -- before it: gpuyard lease -g 1 -- {quote(typed)} …"


def check_here(cluster: "Client", node_id: str | None = None) -> None:
    """Raise `LeaseOnOtherNode` unless this machine is a node of the cluster, or is this node."""
    here = nodes_here(cluster)
    instead = "`gpuyard run --pty -g 1 -- COMMAND` runs a command on any node, with your terminal."
    if not here:
        raise LeaseOnOtherNode(f"No node of the cluster is this machine, so leased GPUs cannot be used here. {instead}")
    if node_id is not None and node_id not in here:
        message = f"The leased GPUs are on node {node_id}, and this machine is {' and '.join(here)}. The lease was given back. {instead}"
        raise LeaseOnOtherNode(message)


def nodes_here(cluster: "Client") -> list[str]:
    """Return the nodes of the cluster that are this machine."""
    nodes = cluster.nodes().nodes
    return [node.id for node in nodes if _is_here(node.address, cluster.connection.server)]


def _is_here(address: str | None, server: str) -> bool:
    """Return whether an agent with this address runs on this machine. One on loopback is beside its scheduler."""
    from urllib.parse import urlsplit

    from gpuyard.live.wire.loopback_peer import is_loopback

    if not address:
        return False
    if is_loopback(address):
        return _is_own(urlsplit(server if "//" in server else f"http://{server}").hostname or "")
    return _is_own(address)


def _is_own(host: str) -> bool:
    """Return whether a name or an address belongs to this machine: only such an address can be bound."""
    with suppress(OSError):
        for family, kind, _, _, place in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe, suppress(OSError):
                probe.bind(place)
                return True
    return False


def run_command(cluster: "Client", held: "Lease", command: list[str]) -> int:
    """Run a command on the GPUs of a lease; return its exit code. If the lease ends before, the command is stopped."""
    env = {**os.environ, **held.env, LEASE_VARIABLE: held.id}
    before = signal.signal(
        signal.SIGINT, lambda *_: None
    )  # Ctrl-C is for the command, which does not inherit a handler
    try:
        process = subprocess.Popen(command, env=env)  # noqa: S603 - what the user asks for
    except FileNotFoundError:
        print(f"gpuyard: there is no program {command[0]!r}.", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"gpuyard: {command[0]!r} cannot be run: {error.strerror}.", file=sys.stderr)
        return NOT_EXECUTABLE
    else:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: process.send_signal(number))
        watching = threading.Thread(target=_stop_with_lease, args=(cluster, held, process), daemon=True)
        watching.start()
        code = process.wait()
        return SIGNALLED - code if code < 0 else code
    finally:
        signal.signal(signal.SIGINT, before)


def _stop_with_lease(cluster: "Client", held: "Lease", process: "subprocess.Popen[bytes]") -> None:
    try:
        ended = cluster.wait(held)
    except GpuyardError as error:
        print(f"gpuyard: it is not known whether {held.id} still holds its GPUs: {error}", file=sys.stderr)
        return
    if process.poll() is None:
        print(f"gpuyard: {held.id} has ended ({ended.status}), so the command is stopped.", file=sys.stderr)
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
