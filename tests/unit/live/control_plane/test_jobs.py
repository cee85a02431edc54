"""Background jobs: whatever their process does, they end with a result or one sentence, and the queue goes on."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from gpuyard.core.domain.values import TenantId
from gpuyard.live.control_plane.jobs import (
    MOST_KEPT,
    MOST_QUEUED,
    MOST_REPORT_BYTES,
    BackgroundJob,
    BackgroundJobs,
    TooManyJobs,
)
from gpuyard.live.wire.job_answers import JobOrder, PlanStrategy, SimulatedPolicy
from tests.unit.live.control_plane.clusters import until

REPORT = """print('{"plan":{"results":[],"pareto":null}}')"""
LIMITED = "from gpuyard.cli.service.background_job import limit; import os, sys; limit(os.getppid());"


def jobs_that(code: str, timeout_seconds: float = 60.0) -> BackgroundJobs:
    return BackgroundJobs(timeout_seconds=timeout_seconds, command=(sys.executable, "-c", code))


async def outcome(code: str, timeout_seconds: float = 60.0) -> BackgroundJob:
    jobs = jobs_that(code, timeout_seconds)
    job = jobs.submit("plan", JobOrder(), "ann", None)
    await until(lambda: job.finished_at is not None, 60.0)
    await jobs.close()
    return job


def failed(code: str, timeout_seconds: float = 60.0) -> str:
    job = asyncio.run(outcome(code, timeout_seconds))
    assert job.status == "failed"
    assert job.error is not None
    assert job.error.endswith(".")
    return job.error


def test_the_result_of_a_process_is_kept() -> None:
    job = asyncio.run(outcome(REPORT))
    assert (job.status, job.error) == ("done", None)
    assert job.result().plan is not None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.abort()", "crashed"),
        ("import os; os.kill(os.getpid(), 9)", "killed"),
        ("import os; os.kill(os.getpid(), 11)", "crashed"),
        ("raise SystemExit(3)", "exit code 3"),
        ("1 / 0", "ZeroDivisionError"),
        ("pass", "without a result"),
        ("print('garbage')", "without a result"),
        ("""print('{"error":"The problem has no GPUs."}')""", "The problem has no GPUs."),
        (f"{LIMITED} bytearray(3 << 30)", "memory"),
        (f"{LIMITED} sys.stdout.write('x' * (20 << 20))", "larger than 16 MiB"),
    ],
)
def test_a_crash_is_one_sentence(code: str, words: str) -> None:
    assert words in failed(code)


def test_a_job_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, time; "
        f"child = subprocess.Popen(['sleep', '600']); open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); "
        "time.sleep(600)"
    )
    assert "longer than 2 s" in failed(code, 2.0)
    gone(pids)


def gone(pids: Path) -> None:
    for pid in map(int, pids.read_text().split()):
        asyncio.run(until(lambda pid=pid: not _lives(pid)))  # type: ignore[misc]


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_cancelled_job_is_killed_and_the_next_one_runs(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    async def story() -> None:
        code = (
            f"import os, pathlib, time; path = pathlib.Path({str(pid)!r})\n"
            f"if not path.exists(): path.write_text(str(os.getpid())); time.sleep(600)\n{REPORT}"
        )
        jobs = jobs_that(code)
        first, second = (jobs.submit("plan", JobOrder(), "ann", None) for _ in range(2))
        third = jobs.submit("plan", JobOrder(), "ann", None)
        await until(lambda: pid.exists() and pid.read_text())
        assert [job.status for job in (first, second, third)] == ["running", "queued", "queued"]
        assert jobs.cancel(third)
        assert jobs.cancel(first)
        await until(lambda: second.finished_at is not None)
        assert [job.status for job in (first, second, third)] == ["cancelled", "done", "cancelled"]
        assert not jobs.cancel(second)
        assert jobs.get("plan", second.id) is None
        await jobs.close()

    asyncio.run(story())
    gone(pid)


def test_the_queue_and_the_results_are_limited() -> None:
    async def story() -> None:
        jobs = jobs_that("import time; time.sleep(600)")
        running = jobs.submit("plan", JobOrder(), "ann", None)
        await until(lambda: running.process is not None)
        queued = [jobs.submit("simulation", JobOrder(), "ann", None) for _ in range(MOST_QUEUED)]
        with pytest.raises(TooManyJobs):
            jobs.submit("plan", JobOrder(), "ann", None)
        for job in queued:
            jobs.cancel(job)
        for _ in range(2 * MOST_KEPT):
            jobs.cancel(jobs.submit("plan", JobOrder(), "ann", None))
        assert len(jobs.all("plan")) + len(jobs.all("simulation")) <= MOST_KEPT
        assert running in jobs.all("plan")
        assert jobs.get("simulation", running.id) is None
        began = time.monotonic()
        await jobs.close()
        assert running.status == "cancelled"
        assert time.monotonic() - began < 30

    asyncio.run(story())


def test_one_tenant_does_not_take_the_queue_or_the_results_of_another(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def story() -> None:
        jobs = jobs_that(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n{REPORT}")
        evil, good = TenantId("evil"), TenantId("good")
        running = jobs.submit("plan", JobOrder(), "eve", evil)
        await until(lambda: running.process is not None)
        waiting = [jobs.submit("plan", JobOrder(), "eve", evil) for _ in range(MOST_QUEUED)]
        with pytest.raises(TooManyJobs, match="of tenant evil wait already"):
            jobs.submit("plan", JobOrder(), "eve", evil)
        mine = jobs.submit("plan", JobOrder(), "bob", good)
        gate.touch()
        await until(lambda: mine.finished_at is not None and waiting[-1].finished_at is not None, 60.0)
        assert mine.started_at is not None
        assert sum((job.started_at or 0) < mine.started_at for job in waiting) == 0, "tenants take turns"
        for _ in range(2 * MOST_KEPT):
            jobs.cancel(jobs.submit("plan", JobOrder(), "eve", evil))
        assert jobs.get("plan", mine.id) is mine
        assert sum(job.tenant == evil for job in jobs.all("plan")) == MOST_KEPT
        await jobs.close()

    asyncio.run(story())


def test_the_process_has_a_low_priority_and_no_settings_of_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_TOKEN", "secret")
    code = (
        f"{LIMITED} assert os.nice(0) >= 15; assert 'GPUYARD_TOKEN' not in os.environ; "
        f"assert os.environ['OMP_NUM_THREADS'] == '1'; {REPORT}"
    )
    job = asyncio.run(outcome(code))
    assert (job.status, job.error) == ("done", None)


def test_a_process_whose_parent_is_gone_ends_at_once() -> None:
    code = f"from gpuyard.cli.service.background_job import limit; limit({os.getpid() + 1}); {REPORT}"
    assert "exit code 1" in failed(code)


def test_the_names_of_the_api_are_those_of_planner_and_simulator() -> None:
    from gpuyard.cli.service.background_job import REPORT_BYTES
    from gpuyard.plan.planner.strategies import STRATEGIES
    from gpuyard.simulator.policy_variants import POLICY_VARIANTS
    from gpuyard.simulator.workloads.journal import SAME

    assert REPORT_BYTES == MOST_REPORT_BYTES
    assert set(get_args(PlanStrategy)) == set(STRATEGIES)
    assert set(get_args(SimulatedPolicy)) == {SAME, *POLICY_VARIANTS}
