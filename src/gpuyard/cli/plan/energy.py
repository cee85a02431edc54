"""What a plan draws, as figures, and power levels where they are asked for."""

from typing import TYPE_CHECKING, Any

from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem


def energy(problem: "Problem", plan: "Plan") -> dict[str, Any]:
    """Kilowatt-hours and where the watts come from; nothing where nobody knows."""
    from gpuyard.plan.planner.energy import energy_kwh, power_of

    power = power_of(problem)
    return {"energy_kwh": energy_kwh(problem, plan, power), "watts_from": power.source.value} if power else {}


def has_levels(problem: "Problem") -> None:
    """Or --slower is refused, before anything is planned."""
    from gpuyard.plan.planner.energy import power_of

    power = power_of(problem)
    if power is None or power.watts.shape[1] == 1:
        raise WrongInput("--slower chooses among power levels, and the file has no GPU with several (gpus[].levels).")


def with_levels(problem: "Problem", plan: "Plan", slower: float) -> "Plan":
    """The plan at the power levels that need least."""
    from gpuyard.plan.planner.energy import eased, power_of

    power = power_of(problem)
    assert power is not None, "has_levels was asked before"
    return eased(problem, plan, power, slower)
