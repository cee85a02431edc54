"""Trains a policy model: several networks are trained separately, a guard is selected, and both are evaluated.

Three methods: `dqn`, `evolution` and `regression` (modules of these names in gpuyard.learn.training). All start from a
hand-written rule and learn its error, and the guard compares with the rule: a model that does not beat it is the rule.

Three disjoint sets of seeds are used: for training, for selecting the guard, and, in benchmarks/dqn.py, for the
reported results. Of a recorded trace the first half is for training and the guard; the second half is not used.
The same options give the same model: nothing depends on a clock or on the number of processes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import exp, hypot, log
from multiprocessing import get_context
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.engine.scheduling.advice import FEATURES
from gpuyard.learn.policy_network import AdvantageAdvisor, Layer, PolicyModel
from gpuyard.learn.training.dqn import Learner, ReplayBuffer, Transition, transitions
from gpuyard.learn.training.evolution import Scaling, average, evolve, linear_net, rows_seen, scaling_of
from gpuyard.learn.training.network import Net
from gpuyard.learn.training.regimes import TRAINED, Regime, of_trace
from gpuyard.learn.training.regression import ChangedAnswers, changes, fitted, resampled
from gpuyard.simulator.confidence import Mean, mean_of
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

EPISODES, TRAINING_STEPS, MEMBERS = 1_200, 6_000, 3
GENERATIONS, POPULATION, GENERATION_WORKLOADS = 20, 12, 2
SCALING_WORKLOADS = 4
"""Workloads of each regime under the rule from which the evolution strategy takes the range of the figures."""
TRAINING_SEEDS, VALIDATION_SEEDS, TEST_SEEDS = 10_000_000, 20_000_000, 50_000_000
"""First seed of each of the three sets."""
A_SEED, A_MEMBER = 10_000, 1_000
VALIDATION_WORKLOADS = 8
NEVER = 1e9
"""A margin that nothing exceeds: the rule decides."""
TOLERATED = 0.02
"""A kind of workload may be slower than under the rule by two percent, about one standard error of a few dozen workloads."""
RANGE_PART = 0.0005
"""Share of the rows that may be outside either end of the trained range."""
ADVISED = policy_variant("dqn")
"""Without an advisor it follows the rule."""
RULE = np.array([name == "rule" for name in FEATURES], np.float32)
LOSS_EVERY, CHECKS, CHECKED_ON, CHECK_WORKLOADS = 100, 8, 15_000_000, 2

PARTS = (0.5, 1.0)
"""Parts of the workloads after which a regression is evaluated, for its curves."""

Method = Literal["dqn", "evolution", "regression"]
OPTIONS: dict[Method, tuple[str, ...]] = {
    "dqn": ("episodes", "training_steps"),
    "evolution": ("generations", "population", "generation_workloads"),
    "regression": ("episodes",),
}
"""The options that not every method has."""
Traces = Mapping[str, Sequence[Job]]
ProgressReport = Callable[[str], None]
AtOnce = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[Any]]
"""Calls a function with each of many arguments, possibly in parallel, and returns the results in order."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options of a training run."""

    seed: int = 0
    method: Method = "dqn"
    members: int = MEMBERS
    episodes: int = EPISODES
    """For dqn and regression: workloads in which answers are tried."""
    training_steps: int = TRAINING_STEPS
    """For dqn: updates of each network."""
    generations: int = GENERATIONS
    """For evolution."""
    population: int = POPULATION
    """For evolution: policies tried in each generation."""
    generation_workloads: int = GENERATION_WORKLOADS
    """For evolution: workloads of each regime on which a generation is compared."""
    workers: int = 1
    """Number of parallel processes, with one core each; does not change the model."""
    jobs: int | None = None
    """Jobs in each workload; None means as the regime says."""
    validation_workloads: int = VALIDATION_WORKLOADS
    """Workloads of each regime on which the guard is selected."""
    regimes: Sequence[Regime] = TRAINED


class Member(NamedTuple):
    """One trained network."""

    net: tuple[Layer, ...]
    losses: list[tuple[int, float]]
    """For dqn: number of updates and mean loss of the last ones; for evolution: generation and mean of its population
    (logarithm of the completion time relative to the rule's); for regression: workloads and mean error of the fit."""
    checks: list[tuple[int, float]]
    """Number of updates, generations or workloads, and the completion times without a guard relative to the rule's, on
    workloads that were not trained on."""


class PolicyGuard(NamedTuple):
    """Limits on when the networks overrule the rule."""

    margin: float
    doubt: float
    trust: float
    """Factor on the networks' correction of the rule."""

    def on(self, model: PolicyModel) -> PolicyModel:
        """Return the model with this guard."""
        nets = tuple((*first, Layer(last.weights * self.trust, last.bias * self.trust)) for *first, last in model.nets)
        return model._replace(margin=self.margin, doubt=self.doubt, nets=nets)


GUARDS = [PolicyGuard(0.0, 0.0, 0.5), PolicyGuard(0.0, 1.0, 1.0)]
"""The guards that are tried: half of every correction, or all of it where the networks agree."""
RULE_ALONE = PolicyGuard(NEVER, 0.0, 1.0)


class Trained(NamedTuple):
    """A model, and the record of its training."""

    model: PolicyModel
    members: list[Member]
    choices: dict[PolicyGuard, dict[str, Mean]]
    """For each guard and each regime, the logarithm of the factor on the rule's average completion time."""


def train(order: TrainingOptions, traces: Traces, tell: ProgressReport) -> Trained:
    """Train networks by the chosen method, select the guard, and return the result."""
    regimes = _regimes(order, traces)
    with _pool(order.workers) as at_once:
        make = {"dqn": _by_dqn, "evolution": _by_evolution, "regression": _by_regression}[order.method]
        model, members, counts = make(order, regimes, traces, at_once, tell)
        choices = judge(model, regimes, traces, order.validation_workloads, at_once, tell)
    guard = choose(choices)
    chosen = choices.get(guard, {})
    about = {
        **options_of(order, traces),
        **counts,
        "trust": guard.trust,
        "validation": {name: [round(exp(it.mean), 4), round(it.ci95, 4)] for name, it in chosen.items()},
        "won": [name for name, it in chosen.items() if it.mean + it.ci95 < 0],
    }
    return Trained(guard.on(model)._replace(about=about), members, choices)


def options_of(order: TrainingOptions, traces: Traces) -> dict[str, Any]:
    """Return what a model file says about its training: every option that changes the model."""
    special = {name for names in OPTIONS.values() for name in names}
    unused = {"workers", "regimes", "jobs"} | (special - set(OPTIONS[order.method]))
    given = {name: value for name, value in asdict(replace(order, regimes=())).items() if name not in unused}
    kinds = {
        regime.name: {
            "nodes": regime.nodes,
            "load": regime.load,
            "jobs": regime.jobs,
            "speeds": {model: list(span) for model, span in regime.speeds.items()},
            "trace": regime.trace,
        }
        for regime in _regimes(order, traces)
    }
    return {**given, "regimes": kinds, "traces": {name: len(jobs) for name, jobs in traces.items()}}


def _regimes(order: TrainingOptions, traces: Traces) -> list[Regime]:
    regimes = [*order.regimes, *(of_trace(name) for name in traces)]
    return regimes if order.jobs is None else [replace(regime, jobs=order.jobs) for regime in regimes]


@contextmanager
def _pool(workers: int) -> Iterator[AtOnce]:
    """Yield a function that runs calls in processes or sequentially; the results and their order are the same."""
    if workers == 1:
        yield lambda call, wanted: (call(*each) for each in wanted)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:

        def at_once(call: Callable[..., Any], wanted: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
            waiting = [pool.submit(call, *each) for each in wanted]
            return (each.result() for each in waiting)

        try:
            yield at_once
        finally:  # on interruption, calls that have not started are dropped
            pool.shutdown(cancel_futures=True)


# --- dqn -----------------------------------------------------------------------------------------------------------------


def _by_dqn(
    order: TrainingOptions, regimes: Sequence[Regime], traces: Traces, at_once: AtOnce, tell: ProgressReport
) -> tuple[PolicyModel, list[Member], dict[str, int]]:
    """Run episodes, and train networks on them."""
    memory, questions = _advised_run(order, regimes, traces, at_once, tell)
    low, high = np.quantile(memory.rows(), (RANGE_PART, 1 - RANGE_PART), axis=0).astype(np.float32)
    wanted = [(order, number, memory, regimes, traces) for number in range(order.members)]
    members = []
    for number, member in enumerate(at_once(_member, wanted), start=1):
        members.append(member)
        tell(_trained(number, order, member))
    seen = Net()
    seen.look_at(torch.from_numpy(memory.rows()))
    nets = tuple(member.net for member in members)
    model = PolicyModel(FEATURES, low, high, seen.mean.numpy(), seen.scale.numpy(), RULE, nets, NEVER, 0.0, {})
    return model, members, {"questions": questions, "remembered": memory.count}


def _trained(number: int, order: TrainingOptions, member: Member) -> str:
    last = f"completion times relative to the rule {member.checks[-1][1]:.3f}"
    return f"Network {number} of {order.members} is trained: {last}"


def _advised_run(
    order: TrainingOptions, regimes: Sequence[Regime], traces: Traces, at_once: AtOnce, tell: ProgressReport
) -> tuple[ReplayBuffer, int]:
    """Run all episodes, with the regimes in turn."""
    found: list[Transition] = []
    questions = 0
    for done, (remembered, asked) in enumerate(at_once(_episode, _in_turn(order, regimes, traces)), start=1):
        found += remembered
        questions += asked
        if done % 20 == 0:
            tell(f"Episode {done:,} of {order.episodes:,}: {questions:,} decisions, {len(found):,} stored")
    if not found:
        raise WrongInput("No episode had a decision to learn from; use more episodes, or more jobs in each.")
    return ReplayBuffer(found), questions


def _in_turn(order: TrainingOptions, regimes: Sequence[Regime], traces: Traces) -> list[tuple[Regime, int, Traces]]:
    """Return regime, seed and traces of each workload to train on, with the regimes in turn."""
    first = TRAINING_SEEDS + order.seed * A_SEED
    of_each = [regimes[place % len(regimes)] for place in range(order.episodes)]
    return [(regime, first + place, traces if regime.trace else {}) for place, regime in enumerate(of_each)]


def _episode(regime: Regime, seed: int, traces: Traces) -> tuple[list[Transition], int]:
    return transitions(lambda number: regime.workload(number, traces), seed)


def _member(
    order: TrainingOptions, number: int, memory: ReplayBuffer, regimes: Sequence[Regime], traces: Traces
) -> Member:
    """Train one network, and evaluate it from time to time."""
    learner = Learner(order.seed * 1_000 + number, memory)
    alone = _by_rule(regimes, traces)
    losses: list[tuple[int, float]] = []
    checks = [(0, _check(_exported(learner), alone, regimes, traces))]
    recent: list[float] = []
    for lesson, loss in enumerate(learner.learn(order.training_steps), start=1):
        recent.append(loss)
        if lesson % LOSS_EVERY == 0:
            losses.append((lesson, sum(recent) / len(recent)))
            recent = []
        if lesson % max(1, order.training_steps // CHECKS) == 0:
            checks.append((lesson, _check(_exported(learner), alone, regimes, traces)))
    return Member(_exported(learner).nets[0], losses, checks)


def _exported(learner: Learner) -> PolicyModel:
    """Return the current network of a learner as a model without a guard."""
    state = {name: values.detach().numpy().copy() for name, values in learner.slow.state_dict().items()}
    net = tuple(Layer(state[f"advantage.{at}.weight"].T.copy(), state[f"advantage.{at}.bias"]) for at in (0, 2, 4))
    nothing = np.zeros(len(FEATURES), np.float32)
    return PolicyModel(FEATURES, nothing, nothing, state["mean"], state["scale"], RULE, (net,), NEVER, 0.0, {})


def _checked(regimes: Sequence[Regime], traces: Traces) -> Iterator[JobsOnCluster]:
    """Yield the workloads of each regime on which networks are evaluated during training."""
    return (regime.workload(CHECKED_ON + place, traces) for regime in regimes for place in range(CHECK_WORKLOADS))


def _by_rule(regimes: Sequence[Regime], traces: Traces) -> list[float]:
    return [simulate_policy(each, ADVISED).measures.avg_jct_s for each in _checked(regimes, traces)]


def _check(model: PolicyModel, alone: Sequence[float], regimes: Sequence[Regime], traces: Traces) -> float:
    """Return the mean ratio of average completion times to those under the rule."""
    advisor = AdvantageAdvisor(model, guarded=False)
    advised = [simulate_policy(each, ADVISED, advisor=advisor).measures.avg_jct_s for each in _checked(regimes, traces)]
    return exp(sum(log(one / other) for one, other in zip(advised, alone, strict=True)) / len(alone))


# --- evolution -----------------------------------------------------------------------------------------------------------


def _by_evolution(
    order: TrainingOptions, regimes: Sequence[Regime], traces: Traces, at_once: AtOnce, tell: ProgressReport
) -> tuple[PolicyModel, list[Member], dict[str, int]]:
    """Search for the weights of each network, one after the other; the simulations of a generation run in parallel."""
    base, scaling = _scaled(order, regimes, traces, at_once)
    members = []
    for number in range(order.members):
        members.append(_evolved(order, number, base, scaling, regimes, traces, at_once, tell))
        tell(_trained(number + 1, order, members[-1]))
    return base._replace(nets=tuple(member.net for member in members)), members, {"questions": scaling.questions}


def _scaled(
    order: TrainingOptions, regimes: Sequence[Regime], traces: Traces, at_once: AtOnce
) -> tuple[PolicyModel, Scaling]:
    """Return the range of the figures under the rule, and a model with this range and without networks."""
    first = TRAINING_SEEDS + order.seed * A_SEED
    wanted = [
        (regime, first + place, traces if regime.trace else {})
        for regime in regimes
        for place in range(SCALING_WORKLOADS)
    ]
    seen = [rows for each in at_once(rows_seen, wanted) for rows in each]
    if not seen:
        raise WrongInput("No workload had a decision to learn from; use more jobs in each.")
    scaling = scaling_of(seen, RANGE_PART)
    base = PolicyModel(FEATURES, scaling.low, scaling.high, scaling.mean, scaling.scale, RULE, (), NEVER, 0.0, {})
    return base, scaling


def _evolved(
    order: TrainingOptions, number: int, base: PolicyModel, scaling: Scaling, regimes: Sequence[Regime],
    traces: Traces, at_once: AtOnce, tell: ProgressReport,
) -> Member:  # fmt: skip
    """Run one search, and evaluate its center from time to time."""
    sizes = (order.generations, order.population, order.generation_workloads)
    first = TRAINING_SEEDS + order.seed * A_SEED + (number + 1) * A_MEMBER
    losses: list[tuple[int, float]] = []
    checks = [(0, 1.0)]
    net: tuple[Layer, ...] = ()
    for generation, net in evolve(order.seed * 1_000 + number, base, scaling, regimes, traces, sizes, first, at_once):
        losses.append((generation.number, generation.mean))
        tell(
            f"Network {number + 1}, generation {generation.number} of {order.generations}: "
            f"mean {exp(generation.mean):.3f}, best {exp(generation.best):.3f} of the rule's completion times"
        )
        if generation.number % max(1, order.generations // CHECKS) == 0 or generation.number == order.generations:
            (ratio,) = _ratios([base._replace(nets=(net,))], regimes, traces, at_once)
            checks.append((generation.number, ratio))
    return Member(net, losses, checks)


def _ratios(models: Sequence[PolicyModel], regimes: Sequence[Regime], traces: Traces, at_once: AtOnce) -> list[float]:
    """Return the mean ratio of completion times to the rule's for each model, on workloads that were not trained on."""
    wanted = [
        (model, regime, CHECKED_ON + place, traces if regime.trace else {})
        for model in (None, *models)
        for regime in regimes
        for place in range(CHECK_WORKLOADS)
    ]
    by_rule, *by_model = np.array(list(at_once(average, wanted))).reshape(1 + len(models), -1)
    return [float(np.exp(np.log(times / by_rule).mean())) for times in by_model]


# --- regression ----------------------------------------------------------------------------------------------------------


def _by_regression(
    order: TrainingOptions, regimes: Sequence[Regime], traces: Traces, at_once: AtOnce, tell: ProgressReport
) -> tuple[PolicyModel, list[Member], dict[str, int]]:
    """Change answers in all workloads, and fit networks to resamples of what that was worth."""
    base, scaling = _scaled(order, regimes, traces, at_once)
    found: list[ChangedAnswers] = []
    for done, each in enumerate(at_once(changes, _in_turn(order, regimes, traces)), start=1):
        found += [] if each is None else [each]
        if done % 20 == 0:
            tell(f"Workload {done:,} of {order.episodes:,}: {_changed(found):,} answers were changed")
    if not found:
        raise WrongInput("No workload had a decision to learn from; use more workloads, or more jobs in each.")
    counts = {"questions": sum(each.questions for each in found), "changed": _changed(found)}
    fits = [_fits(order.seed * 1_000 + number, found, scaling) for number in range(order.members)]
    models = [base._replace(nets=(net,)) for each in fits for _, net, _ in each]
    ratios = iter(_ratios(models, regimes, traces, at_once))
    members = []
    for number, each in enumerate(fits, start=1):
        checks = [(0, 1.0), *((workloads, next(ratios)) for workloads, _, _ in each)]
        members.append(Member(each[-1][1], [(workloads, error) for workloads, _, error in each], checks))
        tell(_trained(number, order, members[-1]))
    return base._replace(nets=tuple(member.net for member in members)), members, counts


def _changed(found: Sequence[ChangedAnswers]) -> int:
    return sum(int(np.count_nonzero(each.turned)) for each in found)


def _fits(seed: int, found: Sequence[ChangedAnswers], scaling: Scaling) -> list[tuple[int, tuple[Layer, ...], float]]:
    """Return number of workloads, network and error of fits to growing parts of one resample."""
    drawn, fits = resampled(found, seed), []
    for part in PARTS:
        workloads = max(1, int(part * len(drawn)))
        weights, error = fitted(drawn[:workloads], scaling)
        fits.append((workloads, linear_net(weights, scaling), error))
    return fits


# --- the guard ---------------------------------------------------------------------------------------------------------


def judge(
    model: PolicyModel,
    regimes: Sequence[Regime],
    traces: Traces,
    validation_workloads: int,
    at_once: AtOnce,
    tell: ProgressReport,
) -> dict[PolicyGuard, dict[str, Mean]]:
    """Evaluate every guard on every regime against the rule on the same workloads."""
    found: dict[PolicyGuard, dict[str, Mean]] = {}
    places = range(validation_workloads)
    wanted = [(model, regime, place, traces if regime.trace else {}) for regime in regimes for place in places]
    answers = at_once(_judged, wanted)
    for regime in regimes:
        by_workload = [next(answers) for _ in places]
        for guard in GUARDS:
            found.setdefault(guard, {})[regime.name] = mean_of([ratios[guard] for ratios in by_workload])
        tell(f"The guard was evaluated on: {regime.name}")
    return found


def _judged(model: PolicyModel, regime: Regime, place: int, traces: Traces) -> dict[PolicyGuard, float]:
    """Return for every guard the logarithm of the average completion time relative to the rule's, on one workload."""
    workload = regime.workload(VALIDATION_SEEDS + place, traces)
    alone = simulate_policy(workload, ADVISED).measures.avg_jct_s
    return {
        guard: log(
            simulate_policy(workload, ADVISED, advisor=AdvantageAdvisor(guard.on(model))).measures.avg_jct_s / alone
        )
        for guard in GUARDS
    }


def choose(choices: Mapping[PolicyGuard, Mapping[str, Mean]]) -> PolicyGuard:
    """Return the guard with the best pessimistic result over all workloads together, if it is surely faster than the rule.

    Kinds of workloads count equally. No kind may be surely slower than under the rule, or slower by more than TOLERATED
    on average. If no guard qualifies, the rule decides alone.
    """
    qualified = {
        guard: upper
        for guard, by_regime in choices.items()
        if by_regime
        and all(it.mean <= TOLERATED and it.mean - it.ci95 <= 0.0 for it in by_regime.values())
        and (upper := _upper_end(list(by_regime.values()))) < 0.0
    }
    return min(qualified, key=lambda guard: (qualified[guard], guard), default=RULE_ALONE)


def _upper_end(found: Sequence[Mean]) -> float:
    """Return the upper end of the interval of the mean over all kinds, whose errors are independent."""
    return (sum(it.mean for it in found) + hypot(*(it.ci95 for it in found))) / len(found)
