"""The process behind `gpuyard witness`: a voter on a machine that has no agent.

Three voters are needed so that the loss of one does not stop the cluster. The two schedulers have one each; a cluster
with few nodes gets the others from witnesses.
"""

import asyncio
import os
import signal
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.journal.folders import FolderNotSafe, closed_folder
from gpuyard.core.replication.timing import Timing
from gpuyard.live.voting.voter_client import VoterClient
from gpuyard.live.voting.voter_file import VOTER_FILE, DurableVoter
from gpuyard.live.wire.clock import SYSTEM_CLOCK
from gpuyard.system.locks import take_lock
from gpuyard.version import __version__

log = structlog.get_logger()


class WitnessStartError(GpuyardError):
    """The witness cannot start. Correct what the sentence names and start it again."""


class WitnessOptions(NamedTuple):
    """Values that do not change while a witness runs."""

    folder: Path
    name: str
    """Of the machine."""
    schedulers: tuple[str, ...]
    """Where schedulers accept voters, each HOST:PORT."""
    join_token: Callable[[], str]
    tls: ssl.SSLContext | None = None


async def run(options: WitnessOptions) -> None:
    """Vote until SIGTERM or SIGINT."""
    folder = options.folder
    try:
        if note := closed_folder(folder, "data folder", "--data-dir"):
            log.warning("folder_permissions_corrected", message=note)
    except OSError as error:
        message = f"Cannot create the data folder {folder}: {error.strerror}. Set --data-dir to another one."
        raise WitnessStartError(message) from error
    except FolderNotSafe as error:
        raise WitnessStartError(str(error)) from error
    with _only_one(folder):
        await _vote(options)
    log.info("witness_stopped")


async def _vote(options: WitnessOptions) -> None:
    try:
        voter = DurableVoter(options.folder / VOTER_FILE, options.name, Timing(), SYSTEM_CLOCK.boot)
    except OSError as error:
        message = f"Cannot read or write {options.folder / VOTER_FILE}: {error.strerror}."
        raise WitnessStartError(message) from error
    for note in voter.notes:
        log.warning("voter_checked", message=note)
    client = VoterClient(voter, "witness", options.name, options.join_token, tls=options.tls)
    client.set_addresses(options.schedulers)
    log.info("witness_started", voter=voter.name, schedulers=options.schedulers, version=__version__)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    voting, stopping = asyncio.create_task(client.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({voting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if voting.done():
            voting.result()
    finally:
        voting.cancel()
        stopping.cancel()
        await asyncio.gather(voting, stopping, return_exceptions=True)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the lock that allows one witness per folder: two with one memory would break their promises."""
    try:
        lock = take_lock(folder / "witness.lock")
    except BlockingIOError:
        raise WitnessStartError(f"Another witness uses {folder}. Give each witness its own --data-dir.") from None
    try:
        yield
    finally:
        os.close(lock)
