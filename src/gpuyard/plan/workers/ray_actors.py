"""Workers as actors of a Ray cluster, one per GPU. Only this module imports Ray.

The GPUs of a problem are assigned to the cluster's nodes one node after another, so GPUs with adjacent numbers share a
node, and a wide model stays on one node. On a node with GPUs one actor reserves the needed number in Ray and reports
which they are; each worker then sees its own GPU and those after it. On a cluster without GPUs the workers are spread
evenly.

Results stay in Ray's object store and move between nodes by reference. The driver owns them, so they outlive the worker
that made them.
"""

import logging
import os
import sys
from collections.abc import Sequence
from threading import Event as Signal
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RaySystemError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.executor.messages import Back, Done, ExecutorEvent, Failed, Lost
from gpuyard.plan.workers.model_host import ModelHost
from gpuyard.plan.workers.order import Order, Reply, Runtime
from gpuyard.plan.workers.restarts import Restarts
from gpuyard.plan.workers.runtimes import prepare

_remote: Any = ray.remote
_nodes: Any = ray.nodes
"""Ray's own type hints cover only part of this."""


class GpuReservation:
    """Reserves GPUs of a node in Ray."""

    def devices(self) -> list[str]:
        """Return the CUDA device names of the reserved GPUs."""
        return [str(device) for device in ray.get_gpu_ids()]


class Actor:
    """A worker. One thread blocks in `stay` forever, so that the driver notices at once when the actor is gone.

    Another one loads and unloads beside calls.
    """

    def __init__(self) -> None:
        self._host = ModelHost()

    def begin(self, devices: str | None, runtimes: list[Runtime]) -> int:
        """Set the visible GPUs and prepare the runtimes; return the process id."""
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices
        prepare(runtimes)
        return os.getpid()

    def stay(self) -> None:
        """Block forever."""
        Signal().wait()

    def execute(self, order: Order, nodes: list[str], *results: Any) -> tuple[Reply, Any]:
        """Execute an order. Results are passed and returned as separate objects: Ray moves them, not the driver."""
        if order.question is not None:
            order.question.results.update(zip(nodes, results, strict=True))
        reply = self._host.execute(order)
        return Reply(reply.operation, reply.seconds, reply.why), reply.result


class RayPool:
    """Implements `Pool`."""

    def __init__(self, address: str, gpus: int, widest: int = 1, runtimes: Sequence[Runtime] = ()) -> None:
        self._stdout = _quiet()
        try:
            _connect(address)
            self._nodes, self.hosts, self._devices, self._reservations = _reserve_gpus(gpus, widest)
        except WrongInput:
            ray.shutdown()
            _loud(self._stdout)
            raise
        self._actors: dict[int, Any] = {}
        self._begins: dict[Any, int] = {}
        self._stays: dict[Any, int] = {}
        self._orders: dict[Any, tuple[int, int, Any]] = {}
        """Pending replies: GPU, operation, and the reference of the result."""
        self._pids: dict[int, int] = {}
        self._runtimes = list(runtimes)
        self._restarts = Restarts()

    def pid(self, gpu: int) -> int | None:
        """Return the process id of a GPU's worker, for monitoring."""
        return self._pids.get(gpu)

    def open(self, gpus: Sequence[int]) -> None:
        """Start an actor for each GPU."""
        self.stop(gpus, for_good=False)

    def _begin(self, gpu: int) -> None:
        where = NodeAffinitySchedulingStrategy(self._nodes[self.hosts[gpu]], soft=False)
        kind = _remote(
            num_cpus=0, max_restarts=0, concurrency_groups={"stay": 1, "beside": 1}, scheduling_strategy=where
        )(Actor)
        actor = kind.remote()
        self._actors[gpu] = actor
        self._begins[actor.begin.remote(self._devices[gpu], self._runtimes)] = gpu
        self._stays[actor.stay.options(concurrency_group="stay").remote()] = gpu

    def send(self, orders: Sequence[tuple[int, Order]]) -> None:
        """Send orders; the results they need are passed as separate references."""
        for gpu, order in orders:
            actor = self._actors.get(gpu)
            if actor is None:
                continue
            waited = {} if order.question is None else dict(order.question.results)
            if order.question is not None:
                order.question.results.clear()
            how = {"num_returns": 2} | ({"concurrency_group": "beside"} if order.beside else {})
            reply, result = actor.execute.options(**how).remote(order, list(waited), *waited.values())
            self._orders[reply] = (gpu, order.operation, result)

    def stop(self, gpus: Sequence[int], *, for_good: bool) -> None:
        """Kill workers; unless `for_good`, start new ones."""
        for gpu in gpus:
            self._restarts.forget(gpu)
            self._drop(gpu)
            if not for_good:
                self._begin(gpu)

    def _drop(self, gpu: int) -> None:
        actor = self._actors.pop(gpu, None)
        self._pids.pop(gpu, None)
        if actor is not None:
            ray.kill(actor)
        self._begins = {ref: one for ref, one in self._begins.items() if one != gpu}
        self._stays = {ref: one for ref, one in self._stays.items() if one != gpu}
        self._orders = {ref: one for ref, one in self._orders.items() if one[0] != gpu}

    def wait(self, seconds: float) -> list[ExecutorEvent]:
        """Return replies and workers that came or went; start the workers whose restart is due."""
        for gpu in self._restarts.due():
            self._begin(gpu)
        refs = [*self._begins, *self._stays, *self._orders]
        pause = self._restarts.pause_s(seconds)
        if not refs:
            Signal().wait(pause)
            return []
        first, rest = ray.wait(refs, num_returns=1, timeout=pause, fetch_local=False)
        more = ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0] if first and rest else []
        events: list[ExecutorEvent] = []
        for ref in [*first, *more]:
            events.extend(self._hear(ref))
        return events

    def _hear(self, ref: Any) -> list[ExecutorEvent]:
        """Return the events of a reference that is ready. References of a worker dropped in the meantime yield none."""
        if ref in self._orders:
            gpu, operation, result = self._orders[ref]
            try:
                reply: Reply = ray.get(ref)
            except (RayActorError, RaySystemError):
                return self._gone(gpu)
            except RayError as error:  # an input was lost with its node, or cannot be pickled
                del self._orders[ref]
                return [Failed(operation, str(error).strip().splitlines()[-1])]
            del self._orders[ref]
            self._restarts.worked(gpu)
            return [Done(operation, reply.seconds, result) if reply.why is None else Failed(operation, reply.why)]
        if ref in self._begins:
            gpu = self._begins[ref]
            try:
                self._pids[gpu] = ray.get(ref)
            except RayError:
                return self._gone(gpu)
            del self._begins[ref]
            return [Back(gpu)]
        return self._gone(self._stays[ref]) if ref in self._stays else []

    def _gone(self, gpu: int) -> list[ExecutorEvent]:
        self._drop(gpu)
        self._restarts.ended(gpu)
        return [Lost(gpu, f"the actor of GPU {gpu} on node {self.hosts[gpu]} ended")]

    @property
    def expects_workers(self) -> bool:
        """Whether a worker may still become ready."""
        return bool(self._restarts or self._begins)

    def fetch(self, result: Any) -> Any:
        """Copy a result to the driver."""
        return None if result is None else ray.get(result).unpack()

    def forget(self, result: Any) -> None:
        """Do nothing: Ray drops objects without references."""

    def close(self) -> None:
        """Stop all actors and disconnect from the cluster."""
        for gpu in list(self._actors):
            self._drop(gpu)
        ray.shutdown()
        _loud(self._stdout)


def _quiet() -> int:
    """Redirect standard output to standard error: Ray reports lost workers there, but it belongs to the command."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept


def _loud(kept: int) -> None:
    sys.stdout.flush()
    os.dup2(kept, 1)
    os.close(kept)


def _connect(address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="gpuyard")
    except (ConnectionError, ValueError) as error:
        words = str(error).strip().splitlines()[0]
        raise WrongInput(
            f"No Ray cluster answers at {address!r} ({words}); start one with `ray start --head`."
        ) from None


def _reserve_gpus(gpus: int, widest: int) -> tuple[list[str], list[int], list[str | None], list[Any]]:
    """Return the cluster's nodes, the node of each GPU, its worker's visible devices (None: unrestricted), and the
    reservations.

    The GPUs stay reserved as long as the reservations are referenced.
    """
    alive = sorted((node for node in _nodes() if node["Alive"]), key=lambda node: str(node["NodeID"]))
    nodes = [str(node["NodeID"]) for node in alive]
    has = [int(node["Resources"].get("GPU", 0)) for node in alive]
    if not any(has):
        return nodes, [gpu * len(nodes) // gpus for gpu in range(gpus)], [None] * gpus, []
    if sum(has) < gpus:
        raise WrongInput(f"The file has {gpus} GPUs, but the Ray cluster has {sum(has)}.")
    hosts: list[int] = []
    reservations: list[Any] = []
    devices: list[str | None] = []
    for host, count in enumerate(has):
        taken = min(count, gpus - len(hosts))
        if taken:
            where = NodeAffinitySchedulingStrategy(nodes[host], soft=False)
            reservation = _remote(num_gpus=taken, num_cpus=0, scheduling_strategy=where)(GpuReservation).remote()
            reservations.append(reservation)
            seen = ray.get(reservation.devices.remote())
            hosts += [host] * taken
            devices += [",".join(seen[place : place + widest]) for place in range(taken)]
    return nodes, hosts, devices, reservations
