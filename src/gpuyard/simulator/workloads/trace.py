"""Jobs from a CSV file with a header and one row per job, plain or gzip; the Helios and Philly traces have this format.

    submit_s, duration_s, gpu_num    submission time, run time, number of GPUs
    user, name, state                optional; all jobs count, in any state
    command                          optional; its program tells which jobs without a name are similar
    gpu_fraction                     optional: the share of its one GPU that a job requests, default all of it
    vc                               optional; used as the user of jobs without one
    any other column                 can be named as the pool

An invalid row is an error with its line. Two things are corrected and counted: rows that are not in the order of
submission are sorted, and jobs without GPUs are left out.
"""

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.values import MILLI
from gpuyard.input.error_location import shortened
from gpuyard.input.files import GZIP, LARGEST_BYTES, open_file, shown_path, size_words
from gpuyard.simulator.workloads.job import Job

COLUMNS = ("submit_s", "duration_s", "gpu_num")
MOST_GPUS = 1_000_000
LAST_INSTANT, MOST_SECONDS = 1e10, 1e9
"""Seconds since 1970 are accepted, milliseconds are not; a run time of thirty years is rejected."""
MOST_BYTES = 100_000
"""Maximum length of a line."""


class WrongTrace(WrongInput):
    """A file of jobs or nodes cannot be used."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order of submission, with counts of the corrections made."""

    jobs: list[Job]
    without_gpus: int = 0
    sorted_rows: int = 0


def read_trace(path: Path, pool: str | None = None) -> Trace:
    """Read a file of jobs; `pool` names the column that says where each may run."""
    jobs: list[Job] = []
    without_gpus = out_of_order = 0
    wanted = (*COLUMNS, pool) if pool else COLUMNS
    shown = shown_path(path)
    for line, row in rows_of(path, wanted):
        where = f"{shown}, line {line}"
        submit = number_in(row, "submit_s", where, 0, LAST_INSTANT)
        seconds = number_in(row, "duration_s", where, 0, MOST_SECONDS)
        gpus = number_in(row, "gpu_num", where, 0, MOST_GPUS)
        if gpus != int(gpus):
            raise WrongTrace(f"{where}: gpu_num is {row['gpu_num']!r}; it must be a whole number.")
        if not gpus:
            without_gpus += 1
            continue
        if jobs and submit < jobs[-1].submit:
            out_of_order += 1
        if pool and not row[pool]:
            raise WrongTrace(f"{where}: {pool} is empty; it must be the pool of the job.")
        user, where_to, name = row.get("user") or row.get("vc", ""), row[pool] if pool else "", row.get("name", "")
        jobs.append(
            Job(
                submit,
                seconds,
                int(gpus),
                user,
                where_to,
                name,
                _fraction(row, gpus, where),
                command=row.get("command", ""),
            )
        )
    if not jobs:
        raise WrongTrace(f"{shown_path(path)}: the file contains no jobs with GPUs.")
    if out_of_order:
        jobs.sort(key=lambda job: job.submit)
    return Trace(jobs, without_gpus, out_of_order)


def write_trace(path: Path, jobs: Iterable[Job]) -> None:
    """Write a readable trace, compressed if its name says so; the same jobs always give the same bytes."""
    with path.open("wb") as raw, ExitStack() as stack:
        packed = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0)) if path.suffix == ".gz" else raw
        file = stack.enter_context(TextIOWrapper(packed, encoding="utf-8", newline=""))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("submit_s", "duration_s", "gpu_num", "user", "name", "gpu_fraction"))
        for job in jobs:
            writer.writerow((job.submit, job.seconds, job.gpus, job.user, job.name, job.fraction_milli / MILLI))


def rows_of(
    path: Path, wanted: tuple[str, ...], head: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV file with their line numbers; it must have the wanted columns and be complete.

    `head`: the columns of a file that has no header line, or this one.
    """
    line = 0
    try:
        with open_file(path) as raw:
            packed = raw.peek(len(GZIP)).startswith(GZIP)
            reader = csv.reader(_lines(path, gzip.GzipFile(fileobj=raw) if packed else raw), strict=True)
            if head is None:
                head = _head(path, next(reader, []), wanted)
            line = reader.line_num
            for cells in reader:
                line = reader.line_num
                if not cells or (line == 1 and cells == list(head)):
                    continue
                if len(cells) != len(head):
                    raise WrongTrace(
                        f"{shown_path(path)}, line {line}: it has {len(cells)} fields, but the header has {len(head)}."
                    )
                yield line, dict(zip(head, cells, strict=True))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WrongTrace(f"{shown_path(path)}: the file is truncated or damaged after line {line}: {error}.") from None
    except csv.Error as error:
        raise WrongTrace(f"{shown_path(path)}, line {line + 1}: this is not comma-separated text: {error}.") from None
    except FileNotFoundError:
        raise WrongTrace(f"File {shown_path(path)} does not exist.") from None
    except OSError as error:
        raise WrongTrace(f"{shown_path(path)} cannot be read: {error.strerror or error}.") from None


def _lines(path: Path, file: BinaryIO | gzip.GzipFile) -> Iterator[str]:
    """Yield line by line, so that errors can name the line, and a file without line breaks is not read into memory."""
    line = size = 0
    while text := file.readline(MOST_BYTES + 1):
        line += 1
        size += len(text)
        if size > LARGEST_BYTES:
            raise WrongTrace(f"{shown_path(path)}, line {line}: the file is larger than {size_words(LARGEST_BYTES)}.")
        if len(text) > MOST_BYTES:
            raise WrongTrace(f"{shown_path(path)}, line {line}: it is longer than {MOST_BYTES:,} bytes.")
        try:
            yield text.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError:
            raise WrongTrace(f"{shown_path(path)}, line {line}: this is not UTF-8.") from None


def _head(path: Path, cells: list[str], wanted: tuple[str, ...]) -> list[str]:
    """Return the column names; all wanted columns must be there, none of them twice."""
    head = [name.strip() for name in cells]
    for name in wanted:
        if name not in head:
            has = ", ".join(map(shortened, head[:20])) or "nothing"
            raise WrongTrace(f"{shown_path(path)}, line 1: column {name} is missing; the file has: {has}.")
    for name, times in Counter(head).items():
        if times > 1:
            raise WrongTrace(f"{shown_path(path)}, line 1: there are {times} columns {shortened(name)}.")
    return head


def _fraction(row: dict[str, str], gpus: float, where: str) -> int:
    """Return the share of a GPU in thousandths; an empty cell means all of it."""
    if not row.get("gpu_fraction"):
        return MILLI
    fraction_milli = round(number_in(row, "gpu_fraction", where, 0, 1) * MILLI)
    if not fraction_milli:
        raise WrongTrace(f"{where}: gpu_fraction is {row['gpu_fraction']}; it must be at least 0.001.")
    if fraction_milli < MILLI and gpus != 1:
        raise WrongTrace(
            f"{where}: gpu_fraction is {row['gpu_fraction']} with {gpus:g} GPUs; only one GPU can be shared."
        )
    return fraction_milli


def number_in(row: dict[str, str], name: str, where: str, least: float, most: float) -> float:
    """Return the number in a column of a row; fail if it is not a number between `least` and `most`."""
    text = row[name]
    try:
        number = float(text)
    except ValueError:
        raise WrongTrace(f"{where}: {name} is {shortened(text)!r}; it must be a number.") from None
    if not least <= number <= most:
        raise WrongTrace(f"{where}: {name} is {shortened(text)}; it must be between {least:g} and {most:g}.")
    return number
