"""A cluster as a Gymnasium environment: the live engine, the simulator's world, and an agent in place of the advisor.

An episode is one workload. A step is one question of the engine (gpuyard.core.engine.scheduling.advice): the observation has the
rows of the candidates, the action is the index of one of them, and masked candidates do not exist. The agent takes the
place of the advisor; there is no second scheduler.

Rewards are the negative time that tasks spend in the cluster: their sum over an episode is minus the sum of all
completion times, so the highest return has the lowest average. A task that cannot be preempted is charged for its whole
run when it starts, at its speed there, because no later decision changes it; all other tasks are charged as time
passes. The time between questions differs, so a future reward is discounted by exp(−seconds / horizon): `info` has the
elapsed seconds. With an infinite horizon the sums are exact.

Future rewards depend mostly on what others will submit, which no candidate changes. So the workload is first run once
with a *reference* advisor, by default one that always takes the first candidate, and `info` has a `potential`: minus what will be charged from now on if
every task that waits or arrives later fares as in that run. Rewards may be shaped with it (Ng, Harada and Russell,
"Policy invariance under reward transformations", 1999): the best candidate stays the same, an agent that acts like the
reference gets exactly zero, and the rest is the effect of the answers. `behind` is the number of tasks, per GPU, that
wait now in excess of the reference run.

The engine asks from deep within a decision, but an environment is stepped from outside: the world runs in a thread of
its own that alternates with the caller, never both at once, so an episode is reproducible with its seed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from threading import Semaphore, Thread
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from gpuyard.core.domain import events
from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import Preemption, TaskId
from gpuyard.core.engine.scheduling.advice import FEATURES, SPEEDS, TASKS, Advisor, Rows
from gpuyard.core.placement.speeds import speed_of
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.arrival import Workload
from gpuyard.simulator.world import World

MOST = 1 + SPEEDS + (TASKS - 1) + 1
"""Maximum number of candidates: the first, the same on other GPUs, other tasks, and waiting."""
Observation = dict[str, npt.NDArray[Any]]


class TakesFirst:
    """An advisor that always takes the first candidate: no task waits for faster GPUs."""

    def pick(self, rows: Rows) -> int:  # noqa: ARG002
        """Return the first candidate."""
        return 0


class ClusterEnv(gymnasium.Env[Observation, Any]):
    """One question after another, until the last task has ended."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self, workload: Callable[[int], Workload], *, horizon: float = inf, reference: Advisor | None = None
    ) -> None:
        """`workload` creates one from a seed; `horizon` is the time constant, in seconds, of the discount."""
        self.observation_space = spaces.Dict(  # type: ignore[assignment] # its type does not say what is in it
            {
                "candidates": spaces.Box(-np.inf, np.inf, (MOST, len(FEATURES)), np.float32),
                "mask": spaces.Box(0, 1, (MOST,), np.int8),
            }
        )
        self.action_space = spaces.Discrete(MOST)
        self._workload = workload
        self._horizon = horizon
        self._policy_variant = policy_variant("dqn")
        self._reference: Advisor = TakesFirst() if reference is None else reference
        self._advised_run: _AdvisedRun | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a workload with this seed, or with a random one."""
        super().reset(seed=seed, options=options)
        self.close()
        number = int(self.np_random.integers(1 << 31)) if seed is None else seed
        workload = self._workload(number)
        before = RewardMeter(self._horizon)
        played = simulate_policy(workload, self._policy_variant, advisor=self._reference, watch=before.watch)
        self._reference_jct_s = played.measures.avg_jct_s
        self._advised_run = _AdvisedRun(workload, self._policy_variant, self._horizon)
        self._before = ReferenceRun(before.task_times, self._horizon)
        rows = self._advised_run.turn(None)
        reward, seconds = self._advised_run.reward_meter.settle()
        info = {"seconds": seconds, "reward": reward, "potential": self._potential(rows)}
        self._gpus = workload.gpus
        return self._seen(rows), {**info, "behind": self._behind(rows)}

    def _behind(self, rows: Rows | None) -> float:
        assert self._advised_run is not None
        reward_meter = self._advised_run.reward_meter
        return (
            0.0
            if rows is None
            else (sum(1 for _ in reward_meter.waiting) - self._before.waiting(reward_meter.now)) / self._gpus
        )

    def _potential(self, rows: Rows | None) -> float:
        assert self._advised_run is not None
        return (
            0.0
            if rows is None
            else -self._before.owed(self._advised_run.reward_meter.waiting, self._advised_run.reward_meter.now)
        )

    def step(self, action: int) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Answer the question with the index of a candidate; fail if it is masked."""
        assert self._advised_run is not None, "reset comes before step"
        rows = self._advised_run.turn(int(action))
        reward, seconds = self._advised_run.reward_meter.settle()
        info: dict[str, Any] = {"seconds": seconds, "potential": self._potential(rows), "behind": self._behind(rows)}
        if rows is None:
            info["avg_jct_s"], info["reference_jct_s"] = self._advised_run.avg_jct_s, self._reference_jct_s
        return self._seen(rows), reward, rows is None, False, info

    def close(self) -> None:
        """Abandon the episode."""
        if self._advised_run is not None:
            self._advised_run.stop()
            self._advised_run = None

    def _seen(self, rows: Rows | None) -> Observation:
        seen: Observation = {"candidates": np.zeros((MOST, len(FEATURES)), np.float32), "mask": np.zeros(MOST, np.int8)}
        if rows is not None:
            seen["candidates"][: len(rows)] = rows
            seen["mask"][: len(rows)] = 1
        return seen


class _Stopped(Exception):
    """Raised to end an episode early, because its result is not needed."""


class _AdvisedRun:
    """A world in a thread that stops at every question."""

    def __init__(self, workload: Workload, under: Any, horizon: float) -> None:
        self.reward_meter = RewardMeter(horizon)
        self.avg_jct_s = 0.0
        self._mine, self._theirs = Semaphore(0), Semaphore(0)
        self._rows: Rows | None = None
        self._answer: int | None = None
        self._failed: BaseException | None = None
        self._thread = Thread(target=self._run, args=(workload, under), daemon=True)

    def turn(self, answer: int | None) -> Rows | None:
        """Run the world to its next question; return None when the episode is over."""
        if answer is None:
            self._thread.start()
        else:
            if self._rows is None or not 0 <= answer < len(self._rows):
                raise ValueError(f"there is no candidate {answer}")
            self._answer = answer
            self._theirs.release()
        self._mine.acquire()
        if self._failed is not None:
            raise self._failed
        return self._rows

    def pick(self, rows: Rows) -> int:
        """Answer as `gpuyard.core.engine.scheduling.advice.Advisor`: hand the question to the caller and wait for its answer."""
        self._rows = rows
        self._mine.release()
        self._theirs.acquire()
        if self._answer is None:
            raise _Stopped
        return self._answer

    def stop(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            self._answer = None
            self._theirs.release()
            self._thread.join()

    def _run(self, workload: Workload, under: Any) -> None:
        try:
            result = simulate_policy(workload, under, advisor=self, watch=self.reward_meter.watch)
            self.avg_jct_s = result.measures.avg_jct_s
        except _Stopped:
            pass
        except BaseException as error:
            self._failed = error
        self._rows = None
        self._mine.release()


@dataclass(slots=True)
class _Stay:
    """State of a task in the cluster."""

    preemptible: bool
    charged: bool = False


@dataclass(slots=True)
class TaskTimes:
    """When a task arrived, when it was placed, and how long it ran there."""

    came: float
    placed: float = inf
    seconds: float = 0.0


class ReferenceRun:
    """The timing of tasks in the reference run."""

    def __init__(self, task_times: Mapping[TaskId, TaskTimes], horizon: float) -> None:
        self._rate = 1.0 / horizon
        self._task_times = task_times
        placed = sorted((times for times in task_times.values() if times.placed < inf), key=lambda times: times.came)
        self._came = [times.came for times in placed]
        self._placed = sorted(times.placed for times in placed)
        self._owed = [0.0] * (len(placed) + 1)
        """For each task, the charge of it and all later ones, discounted to its arrival."""
        later = inf
        for place in reversed(range(len(placed))):
            times = placed[place]
            rest = self._owed[place + 1] * exp(-self._rate * (later - times.came)) if later < inf else 0.0
            self._owed[place] = self._of(times, times.came) + rest
            later = times.came

    def waiting(self, now: float) -> int:
        """Return how many tasks waited at this time in the reference run."""
        return bisect_right(self._came, now) - bisect_left(self._placed, now)

    def owed(self, waiting: Iterable[TaskId], now: float) -> float:
        """Return the charge of the tasks waiting now and of all later ones if they fare as in the reference run."""
        total = 0.0
        place = bisect_right(self._came, now)
        if place < len(self._came):
            total = self._owed[place] * exp(-self._rate * (self._came[place] - now))
        return total + sum(self._of(self._task_times[task], now) for task in waiting if task in self._task_times)

    def _of(self, times: TaskTimes, now: float) -> float:
        """Return the charge of a task from now on; one that the reference had placed by now counts as placed now."""
        waits = max(0.0, times.placed - now) if times.placed < inf else 0.0
        if not self._rate:
            return waits + times.seconds
        return (1.0 - exp(-self._rate * (waits + times.seconds))) / self._rate


class RewardMeter:
    """Adds up the charges for the time that tasks spend in the cluster, since the last settlement."""

    def __init__(self, horizon: float) -> None:
        self._rate = 1.0 / horizon
        self._world: World | None = None
        self._stays: dict[TaskId, _Stay] = {}
        self._passing = 0
        """Number of tasks that are charged as time passes."""
        self._owed = 0.0
        self._at = self._settled_at = 0.0
        self.task_times: dict[TaskId, TaskTimes] = {}
        self._last = 0
        """Number of the last task that was registered."""

    @property
    def now(self) -> float:
        """The time up to which charges are included."""
        return self._at

    @property
    def waiting(self) -> Iterator[TaskId]:
        """The tasks that were not charged for their run yet."""
        return (task for task, stay in self._stays.items() if not stay.charged)

    def watch(self, world: World) -> None:
        """Start to observe this world."""
        self._world = world
        world.listeners.append(self._hear)

    def settle(self) -> tuple[float, float]:
        """Return the reward since the last settlement, discounted to it, and the seconds since then."""
        assert self._world is not None
        self._pass_until(self._world.now)
        state = self._world.engine.state
        for number in range(self._last + 1, state.last_task + 1):
            if (task := state.tasks.get(TaskId(number))) is not None:
                self._stay(task.id, task.spec)
        self._last = state.last_task
        for event in self._world.engine.under_way:
            if isinstance(event, events.TaskPlaced):
                self._placed(event)
        reward, seconds = -self._owed, self._at - self._settled_at
        self._owed, self._settled_at = 0.0, self._at
        return reward, seconds

    def _pass_until(self, now: float) -> None:
        if now > self._at:
            self._owed += self._passing * self._worth(self._at, now)
            self._at = now

    def _worth(self, begin: float, end: float) -> float:
        """Return the discounted length of an interval, relative to the last settlement."""
        if not self._rate:
            return end - begin
        since = self._settled_at
        return (exp(-self._rate * (begin - since)) - exp(-self._rate * (end - since))) / self._rate

    def _hear(self, at: float, new_events: Sequence[events.Event]) -> None:
        self._pass_until(at)
        for event in new_events:
            match event:
                case events.TaskSubmitted(task, spec):
                    self._stay(task, spec)
                case events.TaskPlaced():
                    self._placed(event)
                case events.TaskEnded(task):
                    if not self._stays.pop(task).charged:
                        self._passing -= 1

    def _stay(self, task: TaskId, spec: TaskSpec) -> _Stay:
        """Register a task; may be called twice for one task, because questions are asked before events are published."""
        stay = self._stays.get(task)
        if stay is None:
            stay = self._stays[task] = _Stay(spec.preemption is not Preemption.NEVER)
            self._passing += 1
            self.task_times[task] = TaskTimes(self._at)
        return stay

    def _placed(self, event: events.TaskPlaced) -> None:
        """Charge the whole run of a task that cannot be preempted."""
        assert self._world is not None
        state, task = self._world.engine.state, event.task
        stay = self._stays.get(task) or self._stay(task, state.tasks[task].spec)
        if not stay.preemptible and not stay.charged:
            stay.charged, self._passing = True, self._passing - 1
            run = self._world.runs[task]
            speed = speed_of(run.speeds or (), event.placement, state.index)
            self._owed += self._worth(self._at, self._at + run.seconds / speed)
            times = self.task_times[task]
            times.placed, times.seconds = self._at, run.seconds / speed
