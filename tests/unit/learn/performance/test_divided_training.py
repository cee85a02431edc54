"""A plan that runs: data-parallel and pipeline-parallel training, in processes on the CPU."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.partition.divided_training import STOPPED, TrainingRequest, _free_port
from gpuyard.learn.performance.partition.partitioning import Partitioning
from gpuyard.learn.performance.partition.plans import PartitionPlan, Stage
from gpuyard.learn.performance.partition.submission import chosen_plan, training_request

MODEL = """
import time, torch
from torch import nn
from torch.nn import functional

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layers = nn.Linear(8, 16), nn.ModuleList(Block(16) for _ in range(4))
        self.head = nn.Linear(16, 1)
    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def data(step):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    return (x,), x.sum(1, keepdim=True)

def slow(step):
    time.sleep(0.1)
    return data(step)

def loss(output, target):
    return functional.mse_loss(output, target)
"""
MODULE = "gpuyard.learn.performance.partition.divided_training"
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def request(folder: Path, stages: list[str], replicas: int, micro_batches: int, **more: Any) -> str:
    (folder / "net.py").write_text(MODEL)
    made = TrainingRequest(
        str(folder), "net", "Net", [([16, 8], "float32")], stages, replicas, micro_batches,
        **{"gpus_per_node": len(stages) * replicas, "data": "data", "loss": "loss", "steps": 4, "learning_rate": 0.01, **more},
    )  # fmt: skip
    return msgspec.json.encode(made).decode()


def said(text: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", MODULE, text],
        env={**ENV, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)", text, re.MULTILINE)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of twelve steps in one process."""
    return losses(said(request(tmp_path_factory.mktemp("alone"), ["first"], 1, 1, steps=12)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "replicas", "micro_batches"),
    [
        (["first"], 2, 2),
        (["first", "layers.1", "layers.2"], 1, 2),
    ],
)
def test_a_divided_run_takes_the_same_steps_as_an_undivided_one(
    tmp_path: Path, alone: list[float], stages: list[str], replicas: int, micro_batches: int
) -> None:
    divided = losses(said(request(tmp_path, stages, replicas, micro_batches)))
    assert len(divided) == 4
    assert divided == pytest.approx(alone[:4], rel=1e-4)


@pytest.mark.slow
def test_two_nodes_train_together(tmp_path: Path, alone: list[float]) -> None:
    text = request(tmp_path, ["first", "layers.2"], 2, 2, gpus_per_node=2)
    gang = {**ENV, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", MODULE, text]
    nodes = [
        subprocess.Popen(
            command, env={**gang, "NODE_RANK": rank}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    outputs = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    together = losses(outputs[0][0])
    assert together == pytest.approx(alone[:4], rel=1e-4)
    assert not losses(outputs[1][0]), "only one process speaks"


@pytest.mark.slow
def test_a_stopped_run_continues_after_the_step_that_it_saved(tmp_path: Path, alone: list[float]) -> None:
    text = request(tmp_path, ["first", "layers.2"], 1, 2, steps=12, data="slow")
    env = {**ENV, "GPUYARD_CHECKPOINT_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", MODULE, text], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        assert first.stdout is not None
        before = [first.stdout.readline(), first.stdout.readline()]
        os.killpg(first.pid, signal.SIGTERM)
        before += first.stdout.readlines()
    assert first.returncode == STOPPED
    after = said(text, GPUYARD_CHECKPOINT_DIR=str(tmp_path))
    done = len(losses("".join(before)))
    assert 2 <= done < 12
    assert f"continues after step {done}\n" in after
    assert losses("".join(before)) + losses(after) == pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
def test_without_data_and_loss_the_step_is_measured_with_random_inputs(tmp_path: Path) -> None:
    output = said(request(tmp_path, ["first"], 1, 1, data="", loss="", steps=3, predicted_ms=12.5, precision="amp"))
    assert len(losses(output)) == 3
    assert re.search(r"^median of a step: \d+\.\d ms; predicted: 12\.5 ms$", output, re.MULTILINE)


def test_a_task_with_another_number_of_gpus_than_the_plan_is_refused(tmp_path: Path) -> None:
    text = request(tmp_path, ["first", "layers.2"], 1, 2, gpus_per_node=1)
    done = subprocess.run([sys.executable, "-m", MODULE, text], env=ENV, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (
        2,
        "The plan needs 2 GPUs, and the task has 1.",
    )


# --- from a plan to a request


def plan(stages: int, replicas: int, *, fits: bool = True) -> PartitionPlan:
    parts = tuple(Stage(f"layers.{place}", f"layers.{place}", 0.1, 1.0, 1.0, 1.0) for place in range(stages))
    return PartitionPlan(
        stages=parts, replicas=replicas, micro_batches=2, seconds=0.25, speedup=2.0, bubble=0.0, communication=0.0,
        memory_bytes=1.0, fits=fits,
    )  # fmt: skip


def found(*plans: PartitionPlan, **more: Any) -> Partitioning:
    fields = {"model": "Net", "batch": 16, "gpu": "H100", "gpus": 4, "precision": "amp", "training": True, "flops": 1.0,
              "parameters": 1.0, "shared": (), **more}  # fmt: skip
    return Partitioning(plans=plans, **fields)


def test_the_fastest_plan_that_fits_is_chosen_unless_a_number_of_stages_is_given() -> None:
    wide, deep = plan(1, 4, fits=False), plan(4, 1)
    assert chosen_plan(found(deep, wide), None) is deep
    assert chosen_plan(found(deep, wide), 1) is wide
    with pytest.raises(WrongInput, match=r"There is no plan with 3 stages; plans have 1, 4\."):
        chosen_plan(found(deep, wide), 3)
    with pytest.raises(WrongInput, match="No plan fits in the memory of 4 H100"):
        chosen_plan(found(wide), None)


def test_a_request_has_the_cuts_of_the_plan(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    two = plan(2, 2)
    made = training_request(
        found(two),
        two,
        tmp_path / "net.py",
        "Net",
        ["16x8"],
        nodes=2,
        steps=7,
        learning_rate=0.5,
        data="data",
        loss="loss",
    )
    assert made == TrainingRequest(
        str(tmp_path), "net", "Net", [([16, 8], "float32")], ["layers.0", "layers.1"], 2, 2, 2, "amp", 7, 0.5, "data",
        "loss", 250.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "plans", "sentence"),
    [
        ({}, {"training": False}, "leave out --inference"),
        ({"nodes": 3}, {}, "4 GPUs cannot be divided over 3 nodes"),
        ({"nodes": 0}, {}, "4 GPUs cannot be divided over 0 nodes"),
        ({"steps": 0}, {}, "steps is 0; it must be at least 1"),
        ({"learning_rate": 0.0}, {}, "The learning rate is 0"),
        ({"data": "a b"}, {}, "'a b' is not the name of a function"),
        ({}, {"shared": (("words", "head"),)}, "words and head share parameters, .*; use --stages 1"),
    ],
)
def test_what_cannot_be_run_is_refused(
    tmp_path: Path, more: dict[str, Any], plans: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    two = plan(2, 2)
    with pytest.raises(WrongInput, match=sentence):
        training_request(found(two, **plans), two, tmp_path / "net.py", "Net", ["16x8"], **more)
