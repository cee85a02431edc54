"""Suggest the closest known name for a misspelled one ("did you mean …?")."""

import difflib
from collections.abc import Iterable
from typing import Final

_MEANT: Final = {
    "gpus": ("gpu", "gpu_count", "num_gpus", "ngpus", "n_gpus", "gpus_per_node", "gpus_per_task", "gres"),
    "gpu_count": ("gpu", "gpus", "num_gpus", "ngpus", "n_gpus", "gpus_per_node", "gpus_per_task", "gres"),
    "gpu_model": ("gpu_type", "gpu_types", "gpu_models", "gpu_name", "accelerator", "accelerators"),
    "gpu_memory": ("gpu_mem", "gpu_ram", "vram"),
    "gpu_memory_mb": ("gpu_mem", "gpu_ram", "vram"),
    "cpu_count": ("cpu", "cpus", "cores", "num_cpus", "ncpus", "cpus_per_task", "threads"),
    "memory": ("mem", "ram", "host_memory"),
    "memory_mb": ("mem", "ram", "host_memory"),
    "command": ("cmd", "run", "script", "entrypoint", "exec", "args", "arguments", "program"),
    "work_dir": ("cwd", "dir", "chdir", "workdir", "working_dir", "working_directory", "folder"),
    "env": ("environment", "env_vars", "envs", "vars", "variables"),
    "depends_on": ("after", "after_ok", "deps", "needs", "requires", "dependency", "dependencies"),
    "timeout": ("time", "time_limit", "walltime", "max_time", "limit"),
    "retries": ("retry", "max_retries", "attempts"),
    "nodes": ("num_nodes", "hosts"),
    "labels": ("constraint", "constraints", "node_labels", "node_selector", "selector"),
    "sweep": ("matrix", "grid", "params", "parameters"),
    "tasks": ("jobs", "steps"),
    "project": ("account",),
    "name": ("job_name", "task_name"),
}
"""What other programs call the fields of a task: many of these words look more like the name of another field."""


def fields_meant(word: str) -> list[str]:
    """Return the fields of a task that other programs call by this word."""
    asked = word.lower().replace("-", "_")
    return [name for name, others in _MEANT.items() if asked in others]


def closest_word(word: str, known: Iterable[str]) -> str | None:
    """Return the known word for what others call this, or the most similar one, ignoring case; None: none is similar."""
    lower = {name.lower(): name for name in known}
    asked = word[:100].lower().replace("-", "_")
    if asked in lower:
        return lower[asked]
    for name in fields_meant(asked):
        if name in lower:
            return lower[name]
    found = difflib.get_close_matches(word[:100].lower(), lower, n=1, cutoff=0.55)
    return lower[found[0]] if found else None
