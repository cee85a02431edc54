"""`python -m gpuyard.learn.performance.partition.divided_training JSON`: train a model as a plan divides it.

    node_rank 0: this program ─► process per GPU ─┐
    node_rank 1: this program ─► process per GPU ─┴─ torch.distributed: nccl on GPUs, gloo on CPUs

    rank = replica · stages + stage        stages of one replica are neighbors
    stages > 1: torch.distributed.pipelining divides the traced model at the first block of each stage; 1F1B
    replicas > 1: each trains on its rows of every batch; gradients are averaged (stages = 1: DistributedDataParallel)

All processes make the model with the same seed, so a divided run begins as an undivided one does, and with the same data it
takes the same steps up to rounding. The state is saved to `GPUYARD_CHECKPOINT_DIR`, if that is set: at the end, and when the
task is stopped; the next attempt continues there.

The file of the model may define what is trained (names are in the request):

    data(step) -> (inputs, target)      tensors with the whole batch; the same on every call with the same step
    loss(output, target) -> tensor      the mean over the rows

Without them, inputs are random and the loss is the mean square of the output: enough to measure a step.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

SEED = 0
STOPPED = 143
"""The exit code after SIGTERM, as shells have it."""


class TrainingRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to train, and how it is divided."""

    folder: str
    module: str
    name: str
    inputs: list[tuple[list[int], str]]
    """Shape and type of each input, with the whole batch."""
    stages: list[str]
    """The first block of each stage."""
    replicas: int
    micro_batches: int
    gpus_per_node: int
    precision: str = "fp32"
    steps: int = 100
    learning_rate: float = 1e-3
    data: str = ""
    """Name of a function of the module; empty: random inputs."""
    loss: str = ""
    """Name of a function of the module; empty: the mean square of the output."""
    predicted_ms: float = 0.0
    """Predicted time of a step, printed beside the measured one."""


def main(text: str) -> int:
    """Start a process for each GPU of this node and wait for all of them."""
    asked = msgspec.json.decode(text, type=TrainingRequest)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(_free_port()))
    if asked.gpus_per_node == 1:
        return _train(0, asked)
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

    context = start_processes(  # type: ignore[no-untyped-call]
        _run, args=(text,), nprocs=asked.gpus_per_node, join=False
    )
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the processes receive it, too, and save
    try:
        while not context.join():
            pass
    except ProcessExitedException as ended:
        return ended.exit_code if ended.exit_code == STOPPED else 1
    except ProcessRaisedException as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


def _run(local: int, text: str) -> None:
    code = _train(local, msgspec.json.decode(text, type=TrainingRequest))
    if code:
        sys.exit(code)


def _train(local: int, asked: TrainingRequest) -> int:
    """Be one process of the run."""
    import torch
    from torch import distributed

    stopping = StopSignal()
    nodes, node = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("NODE_RANK", "0"))
    world, rank = nodes * asked.gpus_per_node, node * asked.gpus_per_node + local
    stages = len(asked.stages)
    if world != stages * asked.replicas:
        print(f"The plan needs {stages * asked.replicas} GPUs, and the task has {world}.", file=sys.stderr)
        return 2
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = asked.precision == "tf32"
    address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    distributed.init_process_group("nccl" if on_gpu else "gloo", init_method=address, rank=rank, world_size=world)
    try:
        return _steps(TrainingPart(asked, rank, device), stopping)
    finally:
        distributed.destroy_process_group()


class StopSignal:
    """Notes SIGTERM; the loop saves between two steps."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_: object) -> None:
        self.asked = True


class TrainingPart:
    """The part of the model of one process, and its step."""

    def __init__(self, asked: TrainingRequest, rank: int, device: Any) -> None:
        import torch
        from torch import distributed

        self.asked, self.device = asked, device
        self.stages = len(asked.stages)
        self.replica, self.stage = divmod(rank, self.stages)
        self.is_last = self.stage == self.stages - 1
        self.speaks = self.is_last and self.replica == 0
        # Every process takes part in the creation of every group.
        replicas = [
            distributed.new_group([replica * self.stages + stage for replica in range(asked.replicas)])
            for stage in range(self.stages)
        ]
        pipelines = [
            distributed.new_group([replica * self.stages + stage for stage in range(self.stages)])
            for replica in range(asked.replicas)
        ]
        self._replicas, self._pipeline = replicas[self.stage], pipelines[self.replica]
        sys.path.insert(0, asked.folder)
        module = __import__(asked.module, fromlist=["_"])
        torch.manual_seed(SEED)
        model = getattr(module, asked.name)()
        model.train()
        self._data: Callable[[int], Any] = getattr(module, asked.data) if asked.data else self._random
        self._loss: Callable[[Any, Any], Any] = getattr(module, asked.loss) if asked.loss else _mean_square
        halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
        if asked.precision in halves:
            model.to(halves[asked.precision])
        self._autocast = {"amp": torch.bfloat16, "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(
            asked.precision
        )
        self._schedule: Any = None
        self._reduced: Any = None
        if self.stages > 1:
            self.module = self._pipelined(model)
        else:
            self.module = model.to(device)
            if asked.replicas > 1:
                from torch.nn.parallel import DistributedDataParallel

                self._reduced = DistributedDataParallel(self.module, process_group=self._replicas)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=asked.learning_rate)

    def _pipelined(self, model: Any) -> Any:
        """Divide the traced model and return the part of this stage."""
        from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, SplitPoint, pipeline

        asked = self.asked
        inputs, _ = self._rows(0)
        rows = len(inputs[0]) // asked.micro_batches
        example = tuple(one[:rows].cpu() for one in inputs)
        places = dict.fromkeys(asked.stages[1:], SplitPoint.BEGINNING)
        pipe = pipeline(model, mb_args=example, split_spec=places)
        if pipe.num_stages != self.stages:
            raise SystemExit(f"The model was divided into {pipe.num_stages} stages, not {self.stages}.")
        stage = pipe.build_stage(self.stage, device=self.device, group=self._pipeline)
        schedule = Schedule1F1B if asked.micro_batches >= self.stages else ScheduleGPipe
        self._schedule = schedule(stage, n_microbatches=asked.micro_batches, loss_fn=self._loss)
        return stage.submod

    def _random(self, step: int) -> tuple[tuple[Any, ...], Any]:
        import torch

        draw = torch.Generator().manual_seed(SEED + step)
        made = []
        for shape, dtype in self.asked.inputs:
            kind = getattr(torch, dtype)
            made.append(
                torch.randn(shape, generator=draw).to(kind)
                if kind.is_floating_point
                else torch.zeros(shape, dtype=kind)
            )
        return tuple(made), torch.zeros(self.asked.inputs[0][0][0])

    def _rows(self, step: int) -> tuple[tuple[Any, ...], Any]:
        """Return the rows of this replica of a batch."""
        inputs, target = self._data(step)
        inputs = inputs if isinstance(inputs, tuple | list) else (inputs,)
        whole = len(inputs[0])
        size = whole // self.asked.replicas
        mine = slice(self.replica * size, (self.replica + 1) * size)
        return tuple(one[mine].to(self.device) for one in inputs), target[mine].to(self.device)

    def step(self, number: int) -> float:
        """Take one step; return the loss of this replica, on the last stage."""
        import torch

        inputs, target = self._rows(number)
        self.optimizer.zero_grad()
        cast = torch.autocast(self.device.type, self._autocast) if self._autocast is not None else nullcontext()
        with cast:
            losses = (
                self._pipeline_step(inputs, target) if self._schedule is not None else self._plain_step(inputs, target)
            )
        if self._schedule is not None and self.asked.replicas > 1:
            self._average_gradients()
        self.optimizer.step()
        return float(torch.stack(losses).mean()) if losses else 0.0

    def _pipeline_step(self, inputs: Sequence[Any], target: Any) -> list[Any]:
        losses: list[Any] = []
        if self.stage == 0:
            self._schedule.step(*inputs)
        elif self.is_last:
            self._schedule.step(target=target, losses=losses)
        else:
            self._schedule.step()
        return [loss.detach() for loss in losses]

    def _plain_step(self, inputs: Sequence[Any], target: Any) -> list[Any]:
        losses = []
        count = self.asked.micro_batches
        size = len(target) // count
        for place in range(count):
            rows = slice(place * size, (place + 1) * size)
            waits = self._reduced.no_sync() if self._reduced is not None and place < count - 1 else nullcontext()
            with waits:
                loss = self._loss((self._reduced or self.module)(*(one[rows] for one in inputs)), target[rows])
                (loss / count).backward()
            losses.append(loss.detach())
        return losses

    def _average_gradients(self) -> None:
        from torch import distributed

        for parameter in self.module.parameters():
            if parameter.grad is not None:
                distributed.all_reduce(parameter.grad, group=self._replicas)
                parameter.grad /= self.asked.replicas

    def mean_over_replicas(self, value: float) -> float:
        """Return the mean of a value over the replicas of this stage."""
        import torch
        from torch import distributed

        all_of_it = torch.tensor([value], dtype=torch.float64, device=self.device)
        distributed.all_reduce(all_of_it, group=self._replicas)
        return float(all_of_it) / self.asked.replicas

    def any_stops(self, asked: bool) -> bool:
        """Return whether a process was told to stop; all answer alike, so that all save the same step."""
        import torch
        from torch import distributed

        flag = torch.tensor([int(asked)], device=self.device)
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
        return bool(flag)

    # --- the state ----------------------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path | None:
        folder = os.environ.get("GPUYARD_CHECKPOINT_DIR")
        return Path(folder) / f"stage-{self.stage}.pt" if folder else None

    def load(self) -> int:
        """Continue from the saved state, if all processes find the same one; return the number of steps done."""
        import torch
        from torch import distributed

        file = self._file
        found = torch.load(file, map_location=self.device) if file is not None and file.exists() else None
        done = torch.tensor([found["step"] if found else 0], device=self.device)
        least = done.clone()
        distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
        distributed.all_reduce(done, op=distributed.ReduceOp.MAX)
        if found is None or int(least) != int(done):
            return 0
        self.module.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        return int(done)

    def save(self, step: int) -> None:
        """Save the state of this stage, and wait until all stages have: one that ends may take the others with it."""
        import torch
        from torch import distributed

        file = self._file
        if file is not None and not self.replica:
            part = file.with_suffix(".part")
            state = {"step": step, "model": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, part)
            part.replace(file)
        distributed.barrier()


def _steps(part: TrainingPart, stopping: StopSignal) -> int:
    first = part.load()
    if first and part.speaks:
        print(f"continues after step {first}", flush=True)
    times = []
    for number in range(first, part.asked.steps):
        began = time.perf_counter()
        loss = part.mean_over_replicas(part.step(number))
        times.append(time.perf_counter() - began)
        if part.speaks:
            print(f"step {number + 1} loss {loss:.6f} {times[-1] * 1e3:.1f} ms", flush=True)
        if part.any_stops(stopping.asked):
            part.save(number + 1)
            return STOPPED
    part.save(part.asked.steps)
    if part.speaks and times:
        predicted = f"; predicted: {part.asked.predicted_ms:.1f} ms" if part.asked.predicted_ms else ""
        print(f"median of a step: {median(times[len(times) > 1 :]) * 1e3:.1f} ms{predicted}", flush=True)
    return 0


def _mean_square(output: Any, _target: Any) -> Any:
    return output.float().square().mean()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
