"""Helios (SenseTime, 2020): `cluster_log.csv` of one of the clusters Earth, Saturn, Uranus and Venus.

    job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
    1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0

`cluster_gpu_number.csv` beside it has the GPUs of every virtual cluster on every day: `date,vc…,total`.
Reference: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021.
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
    whole_gpus,
)
from gpuyard.simulator.workloads.trace import WrongTrace, rows_of

COLUMNS = ("user", "vc", "gpu_num", "state", "submit_time", "duration")
GPUS_PER_NODE = 8


def read(path: Path, omitted: Omitted) -> Iterator[NativeJob]:
    """Yield the jobs with GPUs; `jobname`, which the Lucid artifact adds, is the name of the job."""
    shown = shown_path(path)
    for line, row in rows_of(path, COLUMNS):
        where = f"{shown}, line {line}"
        gpus = whole_gpus(number(row["gpu_num"], "gpu_num", where) or 0, where)
        submit, seconds = instant(row["submit_time"], where), number(row["duration"], "duration", where)
        if not gpus:
            omitted[WITHOUT_GPUS] += 1
        elif submit is None or seconds is None:
            omitted[NEVER_RAN] += 1
        else:
            yield NativeJob(submit, seconds, gpus, row["user"], row["vc"], row.get("jobname", ""), row["state"])


def read_gpu_numbers(path: Path, date: str) -> dict[str, int]:
    """Return the number of nodes of every virtual cluster that has any on a day."""
    days = []
    for line, row in rows_of(path, ("date",)):
        day = row.pop("date").strip()[:10]
        days.append(day)
        if day == date:
            where = f"{shown_path(path)}, line {line}"
            counts = {vc: int(number(text, vc, where) or 0) for vc, text in row.items() if vc != "total"}
            return {vc: gpus // GPUS_PER_NODE for vc, gpus in counts.items() if gpus >= GPUS_PER_NODE}
    known = f"it has {days[0]} to {days[-1]}" if days else "it has no rows"
    raise WrongTrace(f"{shown_path(path)}: there is no row for {date}; {known}.")


FORMAT = TraceFormat(
    read, "cluster_log.csv", "https://github.com/S-Lab-System-Group/HeliosData (data.zip)", "CC BY 4.0"
)
