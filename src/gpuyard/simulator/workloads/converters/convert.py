"""Convert a native trace: read it job by job, keep a window, sort by submission, write the columns of a trace."""

import csv
import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from gpuyard.core.domain.values import MILLI
from gpuyard.input.error_location import shortened
from gpuyard.simulator.workloads.converters import TRACE_FORMATS
from gpuyard.simulator.workloads.converters.helios import GPUS_PER_NODE, read_gpu_numbers
from gpuyard.simulator.workloads.converters.native_job import NativeJob, Omitted, instant
from gpuyard.simulator.workloads.trace import WrongTrace

COLUMNS = ("submit_s", "duration_s", "gpu_num", "user", "vc", "name", "state", "gpu_fraction")
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
JOBS_PER_REPORT = 10_000

OUTSIDE = "jobs outside the window were omitted"


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted trace."""

    jobs: int
    seconds: float
    """Time from the first to the last submission."""
    gpu_seconds: float
    omitted: Mapping[str, int]


def read_instant(kind: str, text: str, name: str) -> float:
    """Parse the begin or the end of a window: a date, or a time since the beginning if the trace has no dates."""
    if TRACE_FORMATS[kind].dated:
        if re.match(r"\d{4}-\d\d-\d\d", text) and (found := instant(text, name)) is not None:
            return found
        raise WrongTrace(f"{name} is {shortened(text)!r}; it must be a date such as 2020-09-01 or 2020-09-01T12:00.")
    if parts := re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([smhd]?)", text):
        return float(parts[1]) * SECONDS[parts[2]]
    raise WrongTrace(f"{name} is {shortened(text)!r}; {kind} has no dates, so it must be a time such as 14d or 86400.")


def convert(
    kind: str,
    source: Path,
    target: Path,
    *,
    begin: float | None = None,
    end: float | None = None,
    rename_vc: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Converted:
    """Write the jobs submitted from `begin` to before `end`; times count from `begin`, or from the first submission.

    `rename_vc`: virtual clusters that were merged or renamed. `progress` is called with the number of jobs read so far.
    """
    omitted: Omitted = Counter()
    renamed = rename_vc or {}
    kept: list[NativeJob] = []
    shared: dict[str, str] = {}
    for place, job in enumerate(TRACE_FORMATS[kind].read(source, omitted), start=1):
        if place % JOBS_PER_REPORT == 0:
            progress(place)
        if (begin is not None and job.submit < begin) or (end is not None and job.submit >= end):
            omitted[OUTSIDE] += 1
            continue
        texts = (renamed.get(job.vc, job.vc), job.user, job.name, job.state)
        vc, user, name, state = (shared.setdefault(text, text) for text in texts)  # few texts, many jobs
        kept.append(job._replace(vc=vc, user=user, name=name, state=state))
    if not kept:
        reasons = "; ".join(f"{count:,} {why}" for why, count in omitted.items())
        raise WrongTrace(f"No job is left of {source.name}{f': {reasons}' if reasons else ''}.")
    kept.sort(key=lambda job: job.submit)
    origin = kept[0].submit if begin is None else begin
    _write(target, COLUMNS, (_row(job, origin) for job in kept))
    return Converted(
        len(kept),
        kept[-1].submit - kept[0].submit,
        sum(job.seconds * job.gpus * job.fraction_milli / MILLI for job in kept),
        omitted,
    )


def convert_nodes(source: Path, target: Path, date: str, rename_vc: Mapping[str, str] | None = None) -> dict[str, int]:
    """Write the nodes of every virtual cluster of a Helios cluster on a day; renamed ones are part of others then."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise WrongTrace(f"The day is {shortened(date)!r}; it must be a date such as 2020-09-10.")
    nodes = {vc: count for vc, count in read_gpu_numbers(source, date).items() if vc not in (rename_vc or {})}
    if not nodes:
        raise WrongTrace(f"No virtual cluster of {source.name} has nodes on {date}.")
    _write(target, ("vc", "nodes", "gpus_per_node"), ((vc, count, GPUS_PER_NODE) for vc, count in nodes.items()))
    return nodes


def _row(job: NativeJob, origin: float) -> tuple[object, ...]:
    fraction = "" if job.fraction_milli == MILLI else job.fraction_milli / MILLI
    return (_plain(job.submit - origin), _plain(job.seconds), job.gpus, job.user, job.vc, job.name, job.state, fraction)


def _plain(seconds: float) -> float | int:
    return int(seconds) if seconds == int(seconds) else round(seconds, 3)


def _write(target: Path, head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Write a CSV file, compressed if the name ends in .gz; the same rows always give the same bytes."""
    with target.open("wb") as raw, ExitStack() as stack:
        packed = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0)) if target.suffix == ".gz" else raw
        file = stack.enter_context(TextIOWrapper(packed, encoding="utf-8", newline=""))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
