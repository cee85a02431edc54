"""Whose GPUs a plan is followed on, and who works there: processes of this machine, actors of Ray, or what a yard lends."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING

from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.cli.plan.ending import Ending
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem
    from gpuyard.plan.workers.follow import OwnGpus
    from gpuyard.plan.workers.leases import YardGpus
    from gpuyard.plan.workers.pool import Pool
    from gpuyard.plan.workers.power import PlannedLevels
    from gpuyard.plan.workers.settings import Runtimes


class On(StrEnum):
    """Where workers live."""

    LOCAL = "local"
    RAY = "ray"


def lender_of(
    on: On,
    yard: bool | None,
    server: str | None,
    token: str | None,
    problem: "Problem",
    speed_up: float,
) -> "OwnGpus | YardGpus":
    """Who the GPUs are from: a yard, or nobody."""
    import os

    from gpuyard.plan.workers.follow import OwnGpus

    if yard is None:
        yard = on is On.LOCAL and (server is not None or bool(os.environ.get("GPUYARD_SERVER")))
    if not yard:
        return OwnGpus(len(problem.gpus))
    if on is On.RAY:
        raise WrongInput(
            "--yard lends GPUs of this machine; with --on ray they are the cluster's: leave one of them out."
        )
    from gpuyard.cli.options import client
    from gpuyard.plan.workers.leases import YardGpus

    return YardGpus(client(server, token), problem.name, len(problem.gpus), speed_up)


def wait_for_gpus(lender: "OwnGpus | YardGpus", ending: "Ending", *, quiet: bool) -> None:
    """Until a yard has lent some, or nobody wants them any more."""
    from gpuyard.cli.progress import Progress
    from gpuyard.plan.workers.follow import OwnGpus

    if not isinstance(lender, OwnGpus):
        with Progress(quiet=quiet) as progress:
            lender.wait(progress.tell, lambda: ending.asked)


def pool_of(on: On, ray_address: str, problem: "Problem", how: "Runtimes", lender: "OwnGpus | YardGpus") -> "Pool":
    """Who works on them."""
    widest = max(model.gpus for model in problem.models)
    if on is On.RAY:
        from importlib.util import find_spec

        if find_spec("ray") is None:
            raise WrongInput("--on ray needs Ray: pip install 'gpuyard[ray]'.")
        from gpuyard.plan.workers.ray_actors import RayPool

        return RayPool(ray_address, len(problem.gpus), widest, how.of_model)
    from gpuyard.plan.workers.follow import OwnGpus
    from gpuyard.plan.workers.local import LocalPool

    if not isinstance(lender, OwnGpus):
        return LocalPool(lender.devices, widest, how.of_model)
    return LocalPool(_devices(len(problem.gpus), virtual=how.are_virtual), widest, how.of_model)


def levels_of(problem: "Problem", planned: "Plan", pool: "Pool", *, virtual: bool) -> "PlannedLevels | None":
    """Who sets the cards to the power levels of the plan; None where it chose none, or there are no cards here."""
    from gpuyard.plan.workers.local import LocalPool

    if planned.level is None or virtual or not isinstance(pool, LocalPool):
        return None
    import pynvml  # type: ignore[import-untyped]

    from gpuyard.plan.workers.clocks import Clocks
    from gpuyard.plan.workers.power import PlannedLevels

    try:
        pynvml.nvmlInit()
        return PlannedLevels(problem, planned, pool.devices, Clocks(pynvml))
    except pynvml.NVMLError as error:
        print(f"gpuyard: The power levels of the plan are not applied: {error}.", file=sys.stderr)
        return None


def _devices(count: int, *, virtual: bool) -> list[str]:
    """What CUDA calls the GPUs: those that this process may see, or all from 0 on."""
    import os

    said = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = [name.strip() for name in said.split(",") if name.strip()]
    if not visible or virtual:
        return [str(number) for number in range(count)]
    if len(visible) < count:
        raise WrongInput(f"The file has {count} GPUs, and CUDA_VISIBLE_DEVICES names {len(visible)}: {said}.")
    return visible[:count]
