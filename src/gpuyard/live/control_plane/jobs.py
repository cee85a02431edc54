"""Background jobs: work of users that takes seconds of a processor, such as plans and simulations.

    submit ──► queue of 4 ──┐
    submit ──► queue of 4 ──┼─ in turns ─► one process at a time (limits: cli/service/background_job.py)
    a queue for each tenant ┘              ──► the last 20 results of each tenant

The scheduler itself computes nothing of it. A job runs in a process of its own, with low priority and limits on time,
memory and output; whatever happens there, the job ends with a result or with one sentence. The module of the process
belongs to a layer above this one, so it is started by its name.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Literal

import msgspec
import structlog

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import TenantId
from gpuyard.live.wire.job_answers import JobOrder, JobReport, JobStatus

MOST_QUEUED, MOST_QUEUED_IN_ALL = 4, 64
MOST_KEPT, MOST_KEPT_IN_ALL = 20, 200
"""Of one tenant, or of one user without a tenant, and of all."""
MOST_TURNS = 1_000
TIMEOUT_SECONDS = 120.0
MOST_REPORT_BYTES = 16 << 20
MODULE = "gpuyard.cli.service.background_job"
JobKind = Literal["plan", "simulation"]

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_SIGNALS = {
    signal.SIGXCPU: "It used more processor time than allowed.",
    signal.SIGKILL: "It was killed, probably because the machine had no memory left.",
    signal.SIGSEGV: "It crashed.",
    signal.SIGABRT: "It crashed, or needed more memory than allowed.",
}

log = structlog.get_logger()


class TooManyJobs(GpuyardError):
    """Too many background jobs wait. Try again when one has ended, or cancel one."""


@dataclass(slots=True)
class BackgroundJob:
    """One background job."""

    id: str
    kind: JobKind
    username: str
    tenant: TenantId | None
    created_at: float
    order: JobOrder
    status: JobStatus = "queued"
    error: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    report: bytes = b""
    """The compressed report of a job that is done."""
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def owner(self) -> tuple[TenantId | None, str]:
        """Return whose queue and results it belongs to: its tenant, or its user if it has none."""
        return (self.tenant, "") if self.tenant is not None else (None, self.username)

    def result(self) -> JobReport:
        """Return the report of a job that is done."""
        return msgspec.json.decode(zlib.decompress(self.report), type=JobReport)


class BackgroundJobs:
    """All jobs of a scheduler, in memory: they are gone after a restart."""

    def __init__(
        self,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        command: Sequence[str] = (sys.executable, "-m", MODULE),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._command = command
        self._clock = clock
        self._jobs: dict[str, BackgroundJob] = {}
        """By id, oldest first."""
        self._turns: dict[tuple[TenantId | None, str], None] = {}
        """Owners in the order of their last turns."""
        self._working: asyncio.Task[None] | None = None

    def submit(self, kind: JobKind, order: JobOrder, username: str, tenant: TenantId | None) -> BackgroundJob:
        """Queue a job."""
        job = BackgroundJob(f"{kind}-{secrets.token_hex(6)}", kind, username, tenant, self._clock(), order)
        queued = [one.owner for one in self._jobs.values() if one.status == "queued"]
        if queued.count(job.owner) >= MOST_QUEUED:
            whose = f"of tenant {tenant}" if tenant is not None else f"of {username}"
            raise TooManyJobs(f"{MOST_QUEUED} background jobs {whose} wait already; try again when one has ended.")
        if len(queued) >= MOST_QUEUED_IN_ALL:
            raise TooManyJobs(f"{MOST_QUEUED_IN_ALL} background jobs wait already; try again when one has ended.")
        self._jobs[job.id] = job
        self._drop_old(job.owner)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return job

    def _drop_old(self, owner: tuple[TenantId | None, str]) -> None:
        """Forget the oldest results of an owner; if there are too many in all, those of the owner with the most."""
        mine = [one for one in self._jobs.values() if one.owner == owner]
        over = [one.id for one in mine if one.finished_at is not None]
        for old in over[: max(0, len(mine) - MOST_KEPT)]:
            del self._jobs[old]
        while len(self._jobs) > MOST_KEPT_IN_ALL:
            ended = [one for one in self._jobs.values() if one.finished_at is not None]
            if not ended:
                return
            ((most, _),) = Counter(one.owner for one in ended).most_common(1)
            del self._jobs[next(one.id for one in ended if one.owner == most)]

    def all(self, kind: JobKind) -> list[BackgroundJob]:
        """Return the jobs of a kind, newest first."""
        return [job for job in reversed(self._jobs.values()) if job.kind == kind]

    def get(self, kind: JobKind, job_id: str) -> BackgroundJob | None:
        """Return a job, or None."""
        job = self._jobs.get(job_id)
        return job if job is not None and job.kind == kind else None

    def cancel(self, job: BackgroundJob) -> bool:
        """Cancel a job that has not ended and return True; forget one that has."""
        if job.finished_at is not None:
            self._jobs.pop(job.id, None)
            return False
        self._end(job, "cancelled")
        _kill(job)
        return True

    async def close(self) -> None:
        """End everything."""
        for job in list(self._jobs.values()):
            if job.finished_at is None:
                self.cancel(job)
        if self._working is not None:
            await asyncio.wait((self._working,))

    async def _work(self) -> None:
        """Run the queued jobs one after the other, those of different owners in turns."""
        while (job := self._next()) is not None:
            job.status, job.started_at = "running", self._clock()
            try:
                await self._run(job)
            except Exception as error:  # the other jobs go on
                log.exception("background_job_failed", job=job.id)
                self._end(job, "failed", f"The job could not be run: {error}")

    def _next(self) -> BackgroundJob | None:
        """Return the oldest queued job of the owner whose last turn was the longest ago."""
        first: dict[tuple[TenantId | None, str], BackgroundJob] = {}
        for job in self._jobs.values():
            if job.status == "queued":
                first.setdefault(job.owner, job)
        if not first:
            return None
        owner = next((one for one in first if one not in self._turns), None)
        if owner is None:
            owner = next(one for one in self._turns if one in first)
        self._turns.pop(owner, None)
        self._turns[owner] = None
        if len(self._turns) > MOST_TURNS:
            del self._turns[next(iter(self._turns))]
        return first[owner]

    async def _run(self, job: BackgroundJob) -> None:
        # Files instead of pipes: a process that writes without end fills its limit and not the scheduler's memory.
        with tempfile.TemporaryFile() as order, tempfile.TemporaryFile() as report, tempfile.TemporaryFile() as said:
            order.write(msgspec.json.encode(job.order))
            order.seek(0)
            inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
            # Started in this thread: the process ends with the thread that started it.
            process = job.process = subprocess.Popen(  # noqa: S603 - our own module
                [*self._command, str(os.getpid())],
                stdin=order,
                stdout=report,
                stderr=said,
                env={**inherited, **_ONE_THREAD},
                cwd="/",
                start_new_session=True,
            )
            try:
                code = await asyncio.to_thread(process.wait, self._timeout_seconds)
            except subprocess.TimeoutExpired:
                self._end(job, "failed", f"The job took longer than {self._timeout_seconds:g} s, the maximum.")
                return
            finally:
                _kill(job)
                await asyncio.to_thread(process.wait)
            await asyncio.to_thread(self._conclude, job, code, report, said)

    def _conclude(self, job: BackgroundJob, code: int, report: IO[bytes], said: IO[bytes]) -> None:
        """Take the result of a process that has ended; runs in a thread."""
        if job.status == "cancelled":
            return
        report.seek(0)
        told = report.read()
        try:
            result = msgspec.json.decode(told, type=JobReport) if code == 0 else None
        except msgspec.MsgspecError:
            result = None
        if result is None:
            said.seek(0)
            last = said.read(1 << 20).decode(errors="replace").strip().rpartition("\n")[2][:300]
            log.warning("background_job_crashed", job=job.id, code=code, last=last)
            too_large = f"Its result is larger than {MOST_REPORT_BYTES >> 20} MiB, the maximum."
            why = too_large if len(told) >= MOST_REPORT_BYTES else _why(code, last)
            self._end(job, "failed", f"The job ended without a result. {why}")
        elif result.error:
            self._end(job, "failed", result.error)
        else:
            job.report = zlib.compress(told, 1)
            self._end(job, "done")

    def _end(self, job: BackgroundJob, status: JobStatus, error: str | None = None) -> None:
        if job.finished_at is None:
            job.status, job.error, job.finished_at = status, error, self._clock()


def _why(code: int, last: str) -> str:
    if code < 0:
        return _SIGNALS.get(signal.Signals(-code), f"It was ended by signal {-code}.")
    if "MemoryError" in last or "Unable to allocate" in last:
        return "It needed more memory than allowed."
    return f"Its process ended with exit code {code}: {last or 'it said nothing'}."


def _kill(job: BackgroundJob) -> None:
    """Kill the process of a job and everything that it has started."""
    process = job.process
    if process is not None and process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
