"""Acme (Shanghai AI Laboratory, 2023): `trace_seren.csv` or `trace_kalos.csv`.

    job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
    5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,…

Kalos has more columns, and its `duration` includes the time in the queue; the run time is therefore taken from start to
end, and `duration` is used only if one of them is missing. `type` (pretraining, evaluation, …) becomes the name.
Reference: Hu et al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024.
"""

from collections.abc import Iterator
from pathlib import Path

from gpuyard.input.files import shown_path
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
from gpuyard.simulator.workloads.trace import rows_of

COLUMNS = ("user", "gpu_num", "type", "state", "submit_time", "start_time", "end_time", "duration")


def read(path: Path, omitted: Omitted) -> Iterator[NativeJob]:
    """Yield the jobs with GPUs."""
    shown = shown_path(path)
    for line, row in rows_of(path, COLUMNS):
        where = f"{shown}, line {line}"
        gpus = whole_gpus(number(row["gpu_num"], "gpu_num", where) or 0, where)
        submit, begin, end = (instant(row[name], where) for name in ("submit_time", "start_time", "end_time"))
        seconds = seconds_between(begin, end)
        if seconds is None:
            seconds = number(row["duration"], "duration", where)
        if not gpus:
            omitted[WITHOUT_GPUS] += 1
        elif submit is None or seconds is None:
            omitted[NEVER_RAN] += 1
        else:
            yield NativeJob(submit, seconds, gpus, row["user"], "", row["type"], row["state"])


FORMAT = TraceFormat(
    read,
    "trace_seren.csv or trace_kalos.csv",
    "https://github.com/InternLM/AcmeTrace (data/job_trace)",
    "CC BY 4.0",
)
