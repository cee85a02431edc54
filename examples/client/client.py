"""Submit some tasks for a tenant, show how they run, and print what became of them.

    python client.py --api http://localhost:8080 --tenant tenant-1 --tasks 5

Every task computes for a moment on one GPU. Exit code 1: a task failed.
"""

import argparse
import sys
import time

import gpuyard

COMMAND = "echo computing on GPU $CUDA_VISIBLE_DEVICES; sleep {seconds}"


def main() -> int:
    options = arguments()
    with gpuyard.connect(options.api) as cluster:
        began = time.monotonic()
        tasks = cluster.submit_many(
            {
                "command": COMMAND.format(seconds=options.seconds),
                "name": f"client-{number}",
                "tenant_id": options.tenant,
                "gpu_count": options.gpus,
            }
            for number in range(options.tasks)
        )
        print(f"{len(tasks)} tasks submitted for {options.tenant}: {tasks[0].id} to {tasks[-1].id}")
        failed = 0
        for ended, task in enumerate(cluster.ends(tasks, timeout=options.timeout), start=1):
            failed += not task.succeeded
            where = ", ".join(task.allocated_gpus) or "no GPU"
            print(f"{bar(ended, len(tasks))} {task.id} {task.status} on {where}", flush=True)
        print(f"{len(tasks) - failed} succeeded, {failed} failed, in {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Submit some tasks and wait for them.")
    parser.add_argument("--api", default="http://localhost:8080", help="address of the scheduler")
    parser.add_argument("--tenant", default="default", help="tenant of the tasks")
    parser.add_argument("--tasks", type=int, default=5, help="number of tasks")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of each task")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each task computes")
    parser.add_argument("--timeout", type=float, default=600, help="how long to wait for all of them")
    options = parser.parse_args()
    if options.tasks < 1:
        parser.error("--tasks must be at least 1")
    return options


def bar(done: int, total: int, width: int = 20) -> str:
    filled = width * done // total
    return f"[{'#' * filled}{'.' * (width - filled)}] {done}/{total}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except gpuyard.ClusterError as error:
        print(f"client: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("client: stopped; the tasks go on. See them with: gpuyard ps", file=sys.stderr)
        sys.exit(130)
