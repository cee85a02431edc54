"""Philly (Microsoft, 2017): `cluster_job_log`, a JSON list of jobs with their attempts.

    [{"status": "Pass", "vc": "ee9e8c", "jobid": "application_1", "user": "ce2f4c",
      "submitted_time": "2017-10-07 01:11:39",
      "attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23",
                    "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}]}]}, …]

A job runs as long as all its attempts together, on as many GPUs as the largest of them. The reduced `philly.csv` of the
Pollux artifact (`timestamp,duration,num_gpus,gpu_time,cluster`), which other simulators use, is read as well.
The list is read job by job, because the file is large.
Reference: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019.
"""

import gzip
import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gpuyard.input.files import GZIP, open_file, shown_path
from gpuyard.simulator.workloads.converters.native_job import (
    NEVER_RAN,
    WITHOUT_GPUS,
    NativeJob,
    Omitted,
    TraceFormat,
    instant,
    number,
    seconds_between,
    whole_gpus,
)
from gpuyard.simulator.workloads.trace import WrongTrace, rows_of

REDUCED = ("timestamp", "duration", "num_gpus", "cluster")
CHUNK = 1024 * 1024
MOST_CHARACTERS = 64 * CHUNK
"""Largest job of the list."""


def read(path: Path, omitted: Omitted) -> Iterator[NativeJob]:
    """Yield the jobs that ran on GPUs, from the JSON list or from the reduced table."""
    try:
        with open_file(path) as raw:
            packed = raw.peek(len(GZIP)).startswith(GZIP)
            file = gzip.GzipFile(fileobj=raw) if packed else raw
            begins = file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")
    except (OSError, EOFError) as error:
        raise WrongTrace(f"{shown_path(path)} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    return _from_list(path, omitted) if begins[:1] == b"[" else _from_table(path, omitted)


def _from_list(path: Path, omitted: Omitted) -> Iterator[NativeJob]:
    for place, job in enumerate(_objects(path), start=1):
        where = f"{shown_path(path)}, job {place}"
        try:
            submit = instant(job["submitted_time"], where)
            attempts = [
                (
                    seconds_between(instant(each["start_time"] or "", where), instant(each["end_time"] or "", where)),
                    sum(len(server["gpus"]) for server in each["detail"]),
                )
                for each in job["attempts"]
            ]
            user, vc, state = str(job.get("user", "")), str(job.get("vc", "")), str(job.get("status", ""))
        except (KeyError, TypeError, AttributeError) as error:
            raise WrongTrace(f"{where}: it has not the form of the Philly trace: {error!r}.") from None
        ran = [(seconds, gpus) for seconds, gpus in attempts if seconds is not None]
        gpus = max((gpus for _, gpus in ran), default=0)
        if submit is None or not ran:
            omitted[NEVER_RAN] += 1
        elif not gpus:
            omitted[WITHOUT_GPUS] += 1
        else:
            yield NativeJob(submit, sum(seconds for seconds, _ in ran), gpus, user, vc, "", state)


def _from_table(path: Path, omitted: Omitted) -> Iterator[NativeJob]:
    shown = shown_path(path)
    for line, row in rows_of(path, REDUCED):
        where = f"{shown}, line {line}"
        submit, seconds = instant(row["timestamp"], where), number(row["duration"], "duration", where)
        gpus = whole_gpus(number(row["num_gpus"], "num_gpus", where) or 0, where)
        if submit is None or seconds is None:
            omitted[NEVER_RAN] += 1
        elif not gpus:
            omitted[WITHOUT_GPUS] += 1
        else:
            yield NativeJob(submit, seconds, gpus, vc=row["cluster"])


def _objects(path: Path) -> Iterator[Any]:
    """Yield the elements of a JSON list, one after the other."""
    decoder, text, place, count = json.JSONDecoder(), "", 0, 0
    chunks = _chunks(path)
    opened = over = False
    while not over:
        try:
            text, place = text[place:] + next(chunks), 0
        except StopIteration:
            text, place, over = text[place:], 0, True
        while True:
            place = _after_space(text, place)
            if not opened:
                if place == len(text):
                    break
                opened, place = True, place + 1  # the bracket
                continue
            if text[place : place + 1] == "]":
                return
            begin = _after_space(text, place + 1) if text[place : place + 1] == "," else place
            try:
                found, place = decoder.raw_decode(text, begin)
            except ValueError:
                break  # the element may continue in the next chunk
            count += 1
            yield found
        if len(text) - place > MOST_CHARACTERS:
            raise WrongTrace(f"{shown_path(path)}: job {count + 1} is longer than {MOST_CHARACTERS:,} characters.")
    raise WrongTrace(f"{shown_path(path)}: the list is truncated or damaged after job {count}.")


def _after_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place


def _chunks(path: Path) -> Iterator[str]:
    decoder = getincrementaldecoder("utf-8-sig")()
    try:
        with open_file(path) as raw:
            packed = raw.peek(len(GZIP)).startswith(GZIP)
            file: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if packed else raw
            while chunk := file.read(CHUNK):
                yield decoder.decode(chunk)
    except UnicodeDecodeError:
        raise WrongTrace(f"{shown_path(path)}: this is not UTF-8.") from None
    except (OSError, EOFError) as error:
        raise WrongTrace(f"{shown_path(path)} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


FORMAT = TraceFormat(
    read,
    "cluster_job_log, or the reduced philly.csv of Pollux",
    "https://github.com/msr-fiddle/philly-traces (trace-data.tar.gz); reduced: "
    "https://github.com/petuum/adaptdl, branch osdi21-artifact",
    "CC BY 4.0",
)
