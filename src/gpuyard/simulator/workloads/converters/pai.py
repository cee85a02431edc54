"""PAI (Alibaba, 2020): the folder with `pai_task_table.csv` and `pai_job_table.csv`, or a table of its simulator.

    pai_task_table.csv   job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type
    pai_job_table.csv    job_name,inst_id,user,status,start_time,end_time        both without a header line
    pai_job_*_100K.csv   job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user,…

Every task with GPUs becomes a job: of `inst_num` instances with `plan_gpu` percent of a GPU each. A single instance with
less than a GPU requests that fraction; several instances get as many whole GPUs as they need together. The submission
time and the user are those of the job if the table of jobs is there; otherwise a task is submitted when it started.
Times are seconds since an unknown instant.
Reference: Weng et al., "MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous GPU Clusters",
NSDI 2022.
"""

from collections.abc import Iterator
from pathlib import Path

from gpuyard.core.domain.values import MILLI
from gpuyard.input.files import is_file, is_folder, shown_path
from gpuyard.simulator.workloads.converters.native_job import (
    NEVER_RAN,
    WITHOUT_GPUS,
    NativeJob,
    Omitted,
    TraceFormat,
    number,
    seconds_between,
    whole_gpus,
)
from gpuyard.simulator.workloads.trace import WrongTrace, rows_of

TASK_TABLE, JOB_TABLE = "pai_task_table.csv", "pai_job_table.csv"
TASKS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
SIMULATED = ("num_inst", "submit_time", "num_gpu", "duration", "user")


def read(path: Path, omitted: Omitted) -> Iterator[NativeJob]:
    """Yield the tasks with GPUs."""
    if not is_folder(path):
        return _from_simulator(path, omitted)
    if not is_file(path / TASK_TABLE):
        raise WrongTrace(f"There is no {TASK_TABLE} in {shown_path(path)}; unpack the archives there.")
    return _from_tables(path, omitted)


def _from_tables(folder: Path, omitted: Omitted) -> Iterator[NativeJob]:
    known: dict[str, tuple[str, float | None]] = {}
    if is_file(folder / JOB_TABLE):
        shown = shown_path(folder / JOB_TABLE)
        for line, row in rows_of(folder / JOB_TABLE, (), head=JOBS):
            submit = number(row["start_time"], "start_time", f"{shown}, line {line}")
            known[row["job_name"]] = row["user"], submit
    shown = shown_path(folder / TASK_TABLE)
    for line, row in rows_of(folder / TASK_TABLE, (), head=TASKS):
        where = f"{shown}, line {line}"
        begin, end = (number(row[name], name, where) for name in ("start_time", "end_time"))
        user, submit = known.get(row["job_name"], ("", None))
        gpu_part = (number(row["plan_gpu"], "plan_gpu", where) or 0) / 100
        instances = number(row["inst_num"], "inst_num", where) or 1
        seconds = seconds_between(begin, end)
        if not gpu_part:
            omitted[WITHOUT_GPUS] += 1
        elif begin is None or seconds is None:
            omitted[NEVER_RAN] += 1
        else:
            came = begin if submit is None else min(submit, begin)
            yield _job(came, seconds, instances, gpu_part, user, row["task_name"], row["status"], where)


def _from_simulator(path: Path, omitted: Omitted) -> Iterator[NativeJob]:
    shown = shown_path(path)
    for line, row in rows_of(path, SIMULATED):
        where = f"{shown}, line {line}"
        submit, seconds = number(row["submit_time"], "submit_time", where), number(row["duration"], "duration", where)
        gpu_part = number(row["num_gpu"], "num_gpu", where) or 0
        instances = number(row["num_inst"], "num_inst", where) or 1
        if not gpu_part:
            omitted[WITHOUT_GPUS] += 1
        elif submit is None or seconds is None:
            omitted[NEVER_RAN] += 1
        else:
            yield _job(submit, seconds, instances, gpu_part, row["user"], "", "", where)


def _job(
    submit: float, seconds: float, instances: float, gpu_part: float, user: str, name: str, state: str, where: str
) -> NativeJob:
    if instances == 1 and gpu_part < 1:
        return NativeJob(submit, seconds, 1, user, "", name, state, max(1, round(gpu_part * MILLI)))
    return NativeJob(submit, seconds, whole_gpus(instances * gpu_part, where), user, "", name, state)


FORMAT = TraceFormat(
    read,
    f"the folder with {TASK_TABLE} and {JOB_TABLE}, or a table pai_job_*_100K.csv of its simulator",
    "https://github.com/alibaba/clusterdata, folder cluster-trace-gpu-v2020",
    "CC BY 4.0",
    dated=False,
)
