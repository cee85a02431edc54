"""The request that a job script means: its options become fields of a task, `job.sh` runs it as Slurm would.

What gpuyard cannot do is named in one line, or refused where running anyway would mislead: containers, `--hold`, `--begin`,
`mpirun` on several nodes.
"""

import os
import re
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zlib import compress

from gpuyard.cli.slurm import values
from gpuyard.cli.slurm.options import SbatchOptions, WrongDirective
from gpuyard.cli.slurm.script import JobScript
from gpuyard.live.wire.tasks import STEPS_SECRET

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client

T = TypeVar("T")
START: Final = 'eval "$SBATCH_START"'
"""The command of a job: the text that runs it is in a variable, so that lists of tasks and of processes stay readable."""
QUIET: Final = frozenset(
    [
        "gpu-bind",
        "mem-bind",
        "gres-flags",
        "oversubscribe",
        "overcommit",
        "wait-all-nodes",
        "threads-per-core",
        "hint",
        "cpu-freq",
        "gpu-freq",
        "comment",
        "wckey",
        "cores-per-socket",
        "sockets-per-node",
        "ntasks-per-core",
        "ntasks-per-socket",
        "distribution",
        "kill-on-invalid-dep",
        "no-kill",
        "propagate",
        "acctg-freq",
        "profile",
        "verbose",
        "quiet",
        "extra",
        "spread-job",
        "use-min-nodes",
        "get-user-env",
        "parsable",
        "test-only",
        "wait",
        "network",
        "power",
        "extra-node-info",
        "thread-spec",
        "core-spec",
        "delay-boot",
        "contiguous",
        "switches",
        "mincpus",
    ]
)
"""Accepted without a word: hints for binding and layout, and what only concerns the answer."""
DONE: Final = frozenset(
    [
        "account",
        "array",
        "chdir",
        "constraint",
        "cpus-per-gpu",
        "cpus-per-task",
        "dependency",
        "error",
        "export",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "input",
        "job-name",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
        "nodes",
        "ntasks",
        "ntasks-per-node",
        "ntasks-per-gpu",
        "no-requeue",
        "open-mode",
        "output",
        "requeue",
        "signal",
        "time",
        "wrap",
        "exclusive",
        "begin",
    ]
)
INSTEAD: Final = {
    "partition": "there are no partitions",
    "qos": "there are no QOS; use --class or --priority",
    "mail-type": "no mail is sent",
    "mail-user": "no mail is sent",
    "reservation": "there are no reservations for jobs",
    "nodelist": "the scheduler chooses the node; use --label",
    "exclude": "the scheduler chooses the node; use --label",
    "nice": "use --priority",
    "priority": "use gpuyard's --priority",
    "exclusive": "other tasks may use the rest of the node",
    "export-file": "use --export or -e",
}
"""What is done instead of options that have no effect."""
_MPI_LAUNCHERS: Final = re.compile(r"^[^#\n]*?\b(mpirun|mpiexec)\b", re.MULTILINE)
_ACTIVATES: Final = re.compile(r"^\s*(conda|mamba|micromamba|source|\.)\s+(\S*/)?activate\b", re.MULTILINE)
_SHIMS: Final = re.compile(r"\b(srun|scontrol|sbatch|squeue|scancel)\b")
_CUDA: Final = re.compile(r"""(?<![\w$])CUDA_VISIBLE_DEVICES=(["']?)([0-9]{1,3}(?:,[0-9]{1,3})*)\1(?=[\s;&|)]|$)""")
_LOGIN_SHELL: Final = re.compile(r"#!.*\s(-\w*l|--login)")
_SHELL: Final = re.compile(r"#!.*\b(ba|da|k|z)?sh\b")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job script as a request."""

    request: dict[str, Any]
    remarks: tuple[str, ...]
    """What is not done, or done differently."""
    meaning: str
    """What is requested, in words."""
    dry_run: bool


class _Asked:
    """Options with their values read; an error names the place."""

    def __init__(self, options: SbatchOptions) -> None:
        self.options = options

    def read(self, name: str, reader: Callable[[str], T]) -> T | None:
        text = self.options.get(name)
        if text is None:
            return None
        try:
            return reader(text)
        except ValueError as error:
            raise WrongDirective(f"{self.options.place(name)}--{name} {text[:80]!r}: {error}.") from None


def job_of(
    script: JobScript,
    arguments: Sequence[str],
    typed: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    folder: str,
    server: str = "",
) -> JobRequest:
    """Return the request of a script. `server` is the address of the scheduler, for `sbatch` in the script. `typed` has the fields of gpuyard's own options; those that are set win."""
    options = SbatchOptions(dict(script.options.values), dict(script.options.origins))
    _refuse_misleading(options)
    asked = _Asked(options)
    remarks = [*script.remarks]
    nodes = asked.read("nodes", values.nodes_of) or 1
    if nodes > 1 and (found := _MPI_LAUNCHERS.search(script.text)):
        raise WrongDirective(
            f"{options.place('nodes')}{script.name} runs on {nodes} nodes and uses {found[1]}, which gpuyard cannot start on "
            "other nodes. Start the ranks with srun; programs that find each other by MASTER_ADDR need no mpirun."
        )
    tasks = _tasks_per_node(asked, nodes)
    request = _resources(asked, nodes, tasks, remarks)
    request |= _other_fields(asked, script.name, folder)
    request |= {
        name: value
        for name, value in typed.items()
        if value is not None and name not in {"env", "secrets", "command", "shell"}
    }
    if options.get("chdir") is not None and typed.get("work_dir") == folder:
        request["work_dir"] = str(Path(folder, options.get("chdir") or ""))
    if typed.get("gpu_fraction") is not None and typed.get("gpu_count") is None:
        request.pop("gpu_count", None)
    gpus = request.get("gpu_count") or 0
    text = _with_own_gpus(script.text, script.name, gpus, remarks)
    array = asked.read("array", values.array_of)
    if array is not None and typed.get("array") is None:
        request["array"] = array.count
        request["max_running"] = typed.get("max_running") or array.limit
    env, secrets = _environment(options, environ, script.text)
    secrets |= typed.get("secrets") or {}
    if nodes > 1:
        secrets[STEPS_SECRET] = token_hex(32)
    env = {name: value for name, value in (env | (typed.get("env") or {})).items() if name not in secrets}
    warning = asked.read("signal", values.signal_of)
    if warning is not None and not warning.only_script:
        remarks.append("--signal is only sent with B:, to the script")
        warning = None
    start = _start_text(
        options,
        request,
        text,
        nodes=nodes,
        tasks=tasks,
        array=array,
        warning=warning,
        folder=folder,
        name=script.name,
        server=server,
    )
    request |= {
        "command": ["/bin/bash", "-c", START, script.name, *arguments],
        "env": env | {"SBATCH_START": start, "SBATCH_SCRIPT_TEXT": text},
        "secrets": secrets or None,
    }
    remarks += _without_effect(options)
    return JobRequest(request, tuple(remarks), _in_words(request), "test-only" in options)


def _refuse_misleading(options: SbatchOptions) -> None:
    for name in options.values:
        if "container" in name:
            raise WrongDirective(
                f"{options.place(name)}--{name}: gpuyard has no containers, and the script would run outside of the image. "
                "Start the container in the script, such as with apptainer exec --nv."
            )
    if "hold" in options:
        message = (
            "--hold: a task cannot be submitted on hold, and would start at once. Submit it later, or use --dependency."
        )
        raise WrongDirective(options.place("hold") + message)
    if (begin := options.get("begin")) is not None and begin.strip().lower() != "now":
        message = (
            f"--begin={begin[:40]}: gpuyard starts tasks as soon as there is room. Submit it later, such as with at(1)."
        )
        raise WrongDirective(options.place("begin") + message)
    if "wrap" in options and options.origins.get("wrap"):
        raise WrongDirective(options.place("wrap") + "--wrap is only valid on the command line.")


def _tasks_per_node(asked: _Asked, nodes: int) -> int:
    if per_node := asked.read("ntasks-per-node", values.count_of):
        return per_node
    tasks = asked.read("ntasks", values.count_of)
    return -(-tasks // nodes) if tasks else 1


def _resources(asked: _Asked, nodes: int, tasks: int, remarks: list[str]) -> dict[str, Any]:
    """Return GPUs, CPUs, memory and nodes, on each node."""
    wanted, others = asked.read("gres", values.gpus_of_gres) or (None, [])
    remarks += [f"--gres={other}: gpuyard manages only GPUs" for other in others]
    count, model = (wanted.count, wanted.model) if wanted else (None, None)
    for name, times in (("gpus-per-node", 1), ("gpus-per-task", tasks), ("gpus", 1)):
        if gpus := asked.read(name, values.gpus_of):
            count, model = gpus.count * times, gpus.model or model
            if name == "gpus":
                if count % nodes:
                    raise WrongDirective(
                        f"{asked.options.place(name)}--gpus {count} cannot be divided by {nodes} nodes."
                    )
                count //= nodes
    constraint = asked.read("constraint", values.constraint_of) or values.Constraint()
    remarks += [f"--constraint={one}: neither a GPU model nor its memory; use --label" for one in constraint.unknown]
    gpus_each = count or 0
    per_task, per_gpu = asked.read("cpus-per-task", values.count_of), asked.read("cpus-per-gpu", values.count_of)
    cpus = None
    if per_task or "ntasks" in asked.options or "ntasks-per-node" in asked.options:
        cpus = (per_task or 1) * tasks
    elif per_gpu and gpus_each:
        cpus = per_gpu * gpus_each
    memory = asked.read("mem", values.memory_of)
    if (per_cpu := asked.read("mem-per-cpu", values.memory_of)) and memory is None:
        memory = per_cpu * (cpus or 1)
    elif (for_gpu := asked.read("mem-per-gpu", values.memory_of)) and memory is None:
        memory = for_gpu * gpus_each
    models = list(constraint.models) or ([model] if model else None)
    if not gpus_each:
        return {
            "gpu_count": 0,
            "cpu_count": cpus or 1,
            "memory_mb": memory or None,
            "nodes": nodes if nodes > 1 else None,
        }
    return {
        "gpu_count": gpus_each,
        "gpu_model": [model] if model else models,
        "gpu_memory_mb": constraint.gpu_memory_mib or None,
        "cpu_count": cpus,
        "memory_mb": memory or None,
        "nodes": nodes if nodes > 1 else None,
    }


def _other_fields(asked: _Asked, script_name: str, folder: str) -> dict[str, Any]:
    options = asked.options
    success, end = asked.read("dependency", values.dependencies_of) or ([], [])
    name = options.get("job-name")
    plain = "".join(character for character in (script_name if name is None else name) if character.isprintable())
    return {
        "name": plain[:200],
        "description": options.get("comment"),
        "project": options.get("account"),
        "timeout": asked.read("time", values.seconds_of_time),
        "depends_on": success or None,
        "after_any": end or None,
        "preemption": "requeue" if "requeue" in options else None,
        "on_lost": "wait" if "no-requeue" in options else None,
        "work_dir": folder,
    }


def _with_own_gpus(text: str, name: str, gpus: int, remarks: list[str]) -> str:
    """Replace `CUDA_VISIBLE_DEVICES=0` by the first GPU of the task: on Slurm the numbers count within the job."""
    if not _SHELL.match(text):
        return text
    lines = text.split("\n")
    changed, kept = [], []
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#"):
            continue
        for found in reversed(list(_CUDA.finditer(line))):
            places = [int(place) for place in found[2].split(",")]
            if max(places) < gpus and places == sorted(set(places)):
                fields = ",".join(str(place + 1) for place in places)
                own = f'CUDA_VISIBLE_DEVICES="$(echo "$SLURM_JOB_GPUS" | cut -d, -f{fields})"'
                lines[number - 1] = lines[number - 1][: found.start()] + own + lines[number - 1][found.end() :]
                changed.append(number)
            else:
                kept.append(number)
    if changed:
        places_named = ", ".join(map(str, dict.fromkeys(changed)))
        remarks.append(f"CUDA_VISIBLE_DEVICES in line {places_named} is replaced by GPUs of the task")
    if kept:
        line_names = ", ".join(map(str, dict.fromkeys(kept)))
        remarks.append(
            f"{name}, line {line_names}: CUDA_VISIBLE_DEVICES names GPUs that may belong to other tasks; remove it"
        )
    return "\n".join(lines)


def _environment(
    options: SbatchOptions, environ: Mapping[str, str], text: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that travel with the job, and those of them that look like secrets, as `--export` says."""
    from gpuyard.cli.input.environment import for_job_script

    env, secrets = for_job_script(environ, activates=_ACTIVATES.search(text) is not None)
    export = options.get("export")
    if export is None or export.strip().upper() == "ALL":
        return env, secrets
    words = [word.strip() for word in export.split(",") if word.strip()]
    if not any(word.upper() == "ALL" for word in words):
        names = {word for word in words if "=" not in word}
        env = {name: value for name, value in env.items() if name in names}
        secrets = {name: value for name, value in secrets.items() if name in names}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            env[name] = value
            secrets.pop(name, None)
    return env, secrets


def _start_text(
    options: SbatchOptions,
    request: Mapping[str, Any],
    text: str,
    *,
    nodes: int,
    tasks: int,
    array: values.ArrayIndices | None,
    warning: values.SignalBeforeLimit | None,
    folder: str,
    name: str,
    server: str,
) -> str:
    """Return the text that runs the script: variables, and `job.sh`."""
    shims = nodes > 1 or _SHIMS.search(text) is not None
    timeout = request.get("timeout")
    warns = warning is not None and timeout is not None
    settings = {
        "name": name,
        "job_name": request.get("name") or name,
        "output": options.get("output") or "",
        "error": options.get("error") or "",
        "input": options.get("input") or "",
        "append": "1" if (options.get("open-mode") or "").lower().startswith("a") else "",
        "cpus": str(request.get("cpu_count") or ""),
        "tasks": str(tasks),
        "partition": (options.get("partition") or "gpuyard").split(",")[0],
        "submit_dir": folder,
        "submit_host": os.uname().nodename,
        "warn_signal": warning.name if warns and warning else "",
        "warn_seconds": f"{max(1.0, timeout - warning.seconds):g}" if warns and warning and timeout else "",
        "segments": " ".join(":".join(map(str, segment)) for segment in array.segments) if array else "",
        "shims": "1" if shims else "",
        "login": "1" if _LOGIN_SHELL.match(text) else "",
        "gang": "1" if nodes > 1 else "",
    }
    if shims:
        settings |= {
            "srun_text": _shipped_file("srun.sh"),
            "scontrol_text": _shipped_file("scontrol.sh"),
            "sbatch_text": _shipped_file("sbatch.sh"),
            "client": str(Path(sys.executable).with_name("gpuyard")),
            "server": server,
        }
    if nodes > 1:
        settings["steps"] = b64encode(compress(_shipped_file("steps.py").encode(), 9)).decode()
    lines = ["unset SBATCH_START", *(f"_job_{variable}={quote(value)}" for variable, value in settings.items())]
    lines += [
        f"export SLURM_{variable}={quote(value)}"
        for variable, value in _asked_variables(options, nodes, tasks, array).items()
    ]
    return "\n".join([*lines, _shipped_file("job.sh")])


def _asked_variables(
    options: SbatchOptions, nodes: int, tasks: int, array: values.ArrayIndices | None
) -> dict[str, str]:
    """Return the variables that Slurm sets only for options that are given."""
    found = {}
    for option, variable in (
        ("ntasks-per-node", "NTASKS_PER_NODE"), ("cpus-per-task", "CPUS_PER_TASK"), ("gpus", "GPUS"), ("cpus-per-gpu", "CPUS_PER_GPU"),
        ("gpus-per-node", "GPUS_PER_NODE"), ("gpus-per-task", "GPUS_PER_TASK"), ("account", "JOB_ACCOUNT"), ("qos", "JOB_QOS"),
    ):  # fmt: skip
        if value := options.get(option):
            found[variable] = value
    for option, variable in (("mem", "MEM_PER_NODE"), ("mem-per-cpu", "MEM_PER_CPU"), ("mem-per-gpu", "MEM_PER_GPU")):
        if value := options.get(option):
            found[variable] = str(values.memory_of(value))
    if "ntasks" in options or "ntasks-per-node" in options:
        count = options.get("ntasks") or str(tasks * nodes)
        found |= {"NTASKS": count, "NPROCS": count}
    if array:
        found |= {
            "ARRAY_TASK_COUNT": str(array.count), "ARRAY_TASK_MIN": str(array.least),
            "ARRAY_TASK_MAX": str(array.most), "ARRAY_TASK_STEP": str(array.step),
        }  # fmt: skip
    return found


@cache
def _shipped_file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _without_effect(options: SbatchOptions) -> list[str]:
    """Return options that have no effect, with what happens instead, as one remark for each reason."""
    by_reason: dict[str, list[str]] = {}
    for name in options.values:
        if name in INSTEAD or name not in DONE | QUIET:
            by_reason.setdefault(INSTEAD.get(name, "not supported"), []).append(f"--{name}")
    return [
        f"{' and '.join(names)} ha{'ve' if len(names) > 1 else 's'} no effect: {reason}"
        for reason, names in by_reason.items()
    ]


def _in_words(request: Mapping[str, Any]) -> str:
    from gpuyard.cli.output.printing import format_seconds

    gpus, cpus, memory = request.get("gpu_count"), request.get("cpu_count"), request.get("memory_mb")
    models = request.get("gpu_model")
    parts = []
    if request.get("array"):
        most = request.get("max_running")
        at_once = f", at most {most} at once" if most else ""
        parts.append(f"{request['array']} tasks{at_once}, each")
    if (request.get("nodes") or 1) > 1:
        parts.append(f"{request['nodes']} nodes, each")
    if gpus:
        kind = f" ({' or '.join(models)})" if models else ""
        parts.append(f"{gpus} GPU{'s' if gpus > 1 else ''}{kind}")
    elif gpus == 0:
        parts.append("no GPU")
    if cpus:
        parts.append(f"{cpus} CPU{'s' if cpus > 1 else ''}")
    if memory:
        parts.append(f"{memory / 1024:.4g} GiB" if memory >= 1024 else f"{memory} MiB")
    limit = request.get("timeout")
    parts.append(f"time limit {format_seconds(limit)}" if limit else "no time limit")
    return re.sub(r"each, ", "each ", ", ".join(parts))


def with_whole_arrays(cluster: "Client", request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with each dependency on the first task of an array as one on all its tasks, as Slurm means it."""
    changed = dict(request)
    for name in ("depends_on", "after_any"):
        if request.get(name):
            changed[name] = [one for ref in request[name] for one in _array_from(cluster, str(ref))]
    return changed


def _array_from(cluster: "Client", ref: str) -> list[str]:
    """Return the tasks of an array by its first one. They have consecutive numbers; of other tasks return the task."""
    from gpuyard.live.sdk.values import number_of

    if number_of(ref) is None:  # a name, which means the whole array anyway
        return [ref]
    first = cluster.task(ref)
    if first.array_index != 0:
        return [ref]

    def belongs(place: int) -> bool:
        from gpuyard.live.sdk import NotFound

        try:
            return cluster.task(first.number + place).array_index == place
        except NotFound:
            return False

    inside, outside = 0, 1
    while outside <= values.MOST_COPIES and belongs(outside):
        inside, outside = outside, outside * 2
    while outside - inside > 1:
        middle = (inside + outside) // 2
        inside, outside = (middle, outside) if belongs(middle) else (inside, middle)
    return [str(first.number + place) for place in range(inside + 1)]


def tell(job: JobRequest, name: str) -> None:
    """Print to standard error what the script requests and what is not done."""
    print(f"gpuyard: {name}: {job.meaning}.", file=sys.stderr)
    if job.remarks:
        print(f"gpuyard: {name}: {'; '.join(job.remarks)}.", file=sys.stderr)
