"""The supervisor's event loop: reads commands and signals, runs the manager, and sends events to all subscribers.

It sleeps until a command arrives, a child ends or a timer is due. With nothing running there is no timer, so it uses no
CPU time.

A supervisor whose keeper was killed becomes the keeper of its tasks itself (the same process, so they stay its
children), and its agent starts the next supervisor, as after a kill. It does so only while an agent is connected.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec

from gpuyard.live.agent.supervisor import messages, paths
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.attempts import AttemptManager
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.exit_records import can_start_keeper, start_keeper

COMMANDS_A_TURN = 16
"""Limit on the commands per turn, so that ends and renewals do not wait behind a thousand launches."""
LONELY_SECONDS = 5.0
"""How long a supervisor that holds nothing waits for a client before it ends."""
START_SECONDS = 0.01
"""How long to hold back the event of a start, so that the end of a short task can go in the same message."""
TRIAL_SECONDS = 20.0
"""How long the installed code may take to show that it can take over."""
DRAIN_SECONDS = 5.0
"""How long a supervisor without a keeper waits for attempts that are about to begin, before it becomes one."""
LOOK_FOR_KEEPER_SECONDS = 1.0
"""How often a supervisor without a keeper checks whether it can become one, while the interpreter is missing."""
MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""A client that lets this much pile up is dropped; when it reconnects it gets the full list of attempts."""


class Handover(msgspec.Struct):
    """State passed from the old code to the new one at `Replace`, in anonymous memory and never on disk."""

    lock: int
    listener: int
    watcher_pid: int
    attempts: list[Attempt]
    waiting: list[messages.Launch]
    queued: list[messages.Launch] = []
    starting: list[tuple[messages.Launch, int]] = []
    """Attempts with the sockets of their starters."""
    keeper: int = 0
    """The pid of the keeper; 0 if it is gone or the old code did not pass it."""
    helpers: list[int] = []
    """Children that belong to no attempt."""


class SupervisorConnection:
    """One client connection."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.frames = messages.Frames()
        self.unsent = bytearray()
        self.is_subscribed = False
        self.is_agent = False
        """Set when the client pings. Only agents do, and an agent starts the next supervisor when this one hangs up."""


class SupervisorServer:
    """Serves one folder until it is no longer needed."""

    def __init__(self, folder: Path, lock: int, listener: socket.socket, manager: AttemptManager, keeper: int) -> None:
        self._folder = folder
        self._lock = lock
        self._listener = listener
        self._manager = manager
        self._keeper = keeper
        self._keeper_descriptor = -1
        self._drain_until: float | None = None
        """Set when the keeper is gone: until then starting attempts may begin. No commands are taken meanwhile."""
        self._look_for_keeper_at: float | None = None
        """When to check again, if the keeper is gone and none can be started. Until then work continues."""
        self._selector = manager.selector
        self._clients: set[SupervisorConnection] = set()
        self._commands: deque[tuple[SupervisorConnection, messages.SupervisorCommand]] = deque()
        self._starts: list[messages.SupervisorEvent] = []
        """Events of starts that have not been sent yet."""
        self._tell_starts_at = 0.0
        self._lonely_since = now()
        self._is_over = False
        self._wakeup, self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        """Serve until the supervisor is no longer needed or receives SIGTERM."""
        self._listen_to_signals()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._heed_signals)
        self._watch_keeper()
        while not self._is_over:
            self._register_adopted()
            for key, mask in self._selector.select(self._seconds_to_wait()):
                if isinstance(key.data, SupervisorConnection):
                    self._serve(key.data, mask)
                elif key.fd in self._manager.adopted.pidfds:
                    self._selector.unregister(key.fd)
                    self._manager.adopted_ended(key.fd)
                else:
                    key.data()
            if self._drain_until is None:
                self._obey()
            self._manager.tick()
            self._tell(self._manager.end_turn())
            if self._nobody_needs_us():
                self._is_over = True
            elif self._must_become_keeper():
                _say("the keeper process has ended: this process becomes the keeper of its tasks")
                self._manager.close()
                start_keeper(self._folder, 0)
        self._manager.close()

    # --- the keeper ---------------------------------------------------------------------------------------------------

    def _watch_keeper(self) -> None:
        """Watch for the end of the keeper, which is the parent process."""
        with suppress(OSError):  # it is gone already
            self._keeper_descriptor = os.pidfd_open(self._keeper) if self._keeper > 1 else -1
        if self._keeper_descriptor >= 0:
            self._selector.register(self._keeper_descriptor, selectors.EVENT_READ, self._keeper_ended)

    def _keeper_ended(self) -> None:
        self._selector.unregister(self._keeper_descriptor)
        os.close(self._keeper_descriptor)
        self._keeper_descriptor = -1

    def _must_become_keeper(self) -> bool:
        """Return whether the keeper is gone, an agent can start the next supervisor, and nothing is starting."""
        if self._keeper_descriptor >= 0 or not any(client.is_agent for client in self._clients):
            self._drain_until = self._look_for_keeper_at = None
            return False
        if self._look_for_keeper_at is not None and now() < self._look_for_keeper_at:
            return False
        self._look_for_keeper_at = None
        if not can_start_keeper():
            self._drain_until = None
            self._look_for_keeper_at = now() + LOOK_FOR_KEEPER_SECONDS
            return False
        if self._drain_until is None:
            self._drain_until = now() + DRAIN_SECONDS
        return self._manager.begins_nothing or now() >= self._drain_until

    # --- waking up ----------------------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        # Handlers instead of SIG_IGN: tasks would inherit an ignored signal.
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        os.write(self._bell, bytes([signal.SIGCHLD]))  # for a child that ended before the handler was set

    def _heed_signals(self) -> None:
        numbers = os.read(self._wakeup, 4096)
        if signal.SIGTERM in numbers:  # tasks continue, and the next supervisor adopts them
            self._is_over = True
        self._manager.reap()

    def _register_adopted(self) -> None:
        for descriptor in self._manager.adopted.pidfds:
            if descriptor not in self._selector.get_map():
                self._selector.register(descriptor, selectors.EVENT_READ)

    def _seconds_to_wait(self) -> float | None:
        if self._commands and self._drain_until is None:
            return 0.0
        seconds = self._manager.seconds_to_next()
        for instant in (self._drain_until, self._look_for_keeper_at):
            if instant is not None:
                left = max(0.0, instant - now())
                seconds = left if seconds is None else min(seconds, left)
        if self._starts:
            left = max(0.0, self._tell_starts_at - now())
            seconds = left if seconds is None else min(seconds, left)
        if self._clients or not self._manager.runs_nothing:
            return seconds
        return LONELY_SECONDS if seconds is None else min(seconds, LONELY_SECONDS)

    def _nobody_needs_us(self) -> bool:
        """Return whether it holds nothing and had no client for a while, or its folder is gone."""
        if self._clients or not self._manager.runs_nothing:
            self._lonely_since = now()
            return False
        if now() - self._lonely_since < LONELY_SECONDS:
            return False
        self._lonely_since = now()
        return self._manager.is_idle or not self._is_our_folder()

    def _is_our_folder(self) -> bool:
        try:
            return os.path.samestat((self._folder / paths.LOCK).stat(), os.fstat(self._lock))
        except OSError:
            return False

    # --- clients ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError:
            return  # the client has disconnected again
        channel.setblocking(False)
        client = SupervisorConnection(channel)
        self._clients.add(client)
        self._selector.register(channel, selectors.EVENT_READ, client)

    def _serve(self, client: SupervisorConnection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._send(client)
        if not mask & selectors.EVENT_READ or client not in self._clients:
            return
        try:
            data = client.channel.recv(1 << 18)
            if not data:
                self._drop(client)
                return
            for body in client.frames.feed(data):
                self._commands.extend((client, command) for command in messages.decode_commands(body))
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            _say(f"a client was dropped: {error}")
            self._drop(client)

    def _drop(self, client: SupervisorConnection) -> None:
        self._clients.discard(client)
        self._selector.unregister(client.channel)
        client.channel.close()

    def _obey(self) -> None:
        commands: list[messages.SupervisorCommand] = []
        while self._commands and len(commands) < COMMANDS_A_TURN:
            client, command = self._commands.popleft()
            if isinstance(command, messages.Ping):
                client.is_agent = True
                self._queue(client, messages.frame([messages.Pong()]))
                continue
            if not isinstance(command, messages.ListAttempts | messages.Subscribe | messages.Replace):
                commands.append(command)
                continue
            # The list must include the commands before it, and events of before it must be sent first.
            self._manager.handle(commands)
            self._tell(self._manager.end_turn())
            commands = []
            if isinstance(command, messages.Replace):
                self._replace(client)
            else:
                client.is_subscribed |= isinstance(command, messages.Subscribe)
                self._queue(client, messages.frame([self._manager.attempt_list()]))
        self._manager.handle(commands)

    def _tell(self, events: list[messages.SupervisorEvent]) -> None:
        # Starts alone wait for a moment; any other event is sent at once, together with the starts before it.
        if all(isinstance(event, messages.Launched) for event in events):
            if events and not self._starts:
                self._tell_starts_at = now() + START_SECONDS
            self._starts += events
            if not self._starts or now() < self._tell_starts_at:
                return
            events = []
        content = messages.frame([*self._starts, *events])
        self._starts = []
        for client in [client for client in self._clients if client.is_subscribed]:
            self._queue(client, content)

    def _queue(self, client: SupervisorConnection, content: bytes) -> None:
        if client not in self._clients:
            return
        client.unsent += content
        if len(client.unsent) > MOST_UNREAD_BYTES:
            _say("a client that does not read was dropped")
            self._drop(client)
        else:
            self._send(client)

    def _send(self, client: SupervisorConnection) -> None:
        try:
            sent = client.channel.send(client.unsent) if client.unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(client)
            return
        del client.unsent[:sent]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
        if self._selector.get_key(client.channel).events != wanted:
            self._selector.modify(client.channel, wanted, client)

    # --- replacing ----------------------------------------------------------------------------------------------------

    def _replace(self, client: SupervisorConnection) -> None:
        """Execute the code that is installed now. Pid, children, lock and listening socket stay; connections close."""
        program = [sys.executable, "-m", "gpuyard.live.agent.supervisor"]
        attempts, waiting, queued, starting = self._manager.handover()
        state = Handover(
            self._lock, self._listener.fileno(), self._manager.watcher_pid, attempts, waiting, queued, starting,
            self._keeper if self._keeper_descriptor >= 0 else 0, self._manager.helpers,
        )  # fmt: skip
        memory = os.memfd_create("handover", 0)
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(msgspec.msgpack.encode(state))
        if complaint := _try([*program, "--check", str(memory)], memory):
            os.close(memory)
            sentence = f"The installed supervisor cannot take over: {complaint}"
            self._queue(client, messages.frame([messages.NotReplaced(sentence)]))
            return
        os.lseek(memory, 0, os.SEEK_SET)
        for descriptor in (self._lock, self._listener.fileno(), *(channel for _, channel in starting)):
            os.set_inheritable(descriptor, True)
        os.execv(sys.executable, [*program, "--folder", str(self._folder), "--resume", str(memory)])  # noqa: S606


def _try(words: list[str], memory: int) -> str:
    """Let the installed code take over a copy of the state. Return the error; empty if it succeeds."""
    os.lseek(memory, 0, os.SEEK_SET)
    try:
        trial = subprocess.run(  # noqa: S603 - our own module, by our own interpreter
            words, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=TRIAL_SECONDS, cwd="/",
            pass_fds=[memory],
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = trial.stderr.decode(errors="replace").strip().splitlines()
    return (lines or [f"it ended with {trial.returncode}"])[-1] if trial.returncode else ""


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def say_what_broke() -> None:
    """Print the traceback of an unexpected error, for the file supervisor.out."""
    traceback.print_exc(file=sys.stderr)
    sys.stderr.flush()
