"""Training loops of well-known shapes are one step each, and whatever uses the model afterwards waits for them."""

from pathlib import Path

import pytest

from tests.unit.learn.analysis.scripts import script

HEAD = """
import torch
from torch import nn
model = nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOPS = {
    "inline steps": """
for step in range(100):
    x = torch.randn(8, 4)
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0: torch.save(model.state_dict(), f"ck_{step}.pt")
""",
    "while with a break": """
step = 0
while True:
    loss = model(torch.randn(8, 4)).mean()
    loss.backward()
    opt.step()
    step += 1
    if step > 10:
        break
""",
    "epochs over a loader": """
loader = torch.utils.data.DataLoader([torch.zeros(4)] * 8)
for epoch in range(3):
    for batch in loader:
        loss = model(batch).sum()
        loss.backward()
        opt.step()
""",
    "a step function": """
def step(batch):
    loss = model(batch).sum()
    loss.backward()
    opt.step()
    opt.zero_grad()
for i in range(10):
    step(torch.randn(2, 4))
""",
    "gradients by hand": """
for i in range(10):
    loss = model(torch.randn(2, 4)).sum()
    grads = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for p, g in zip(model.parameters(), grads):
            p -= 0.1 * g
""",
    "a scaler": """
scaler = torch.amp.GradScaler("cpu", enabled=False)
for i in range(10):
    loss = model(torch.randn(2, 4)).sum()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
}


@pytest.mark.parametrize("shape", LOOPS)
def test_a_training_loop_is_one_step_and_later_steps_depend_on_it(tmp_path: Path, shape: str) -> None:
    read = script(tmp_path, HEAD + LOOPS[shape] + "torch.save(model.state_dict(), 'final.pt')\n")
    training = [task for task in read.graph.tasks if task.kind == "training"]
    assert [task.independent for task in training] == [False]
    assert training[0].id in read.needs("save")
    assert read.graph.width == 1
    assert [request.array for request in read.graph.requests] == [None]


def test_a_jax_loop_is_one_step(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import jax, jax.numpy as jnp
        def loss(p, x): return jnp.mean((p * x) ** 2)
        grad = jax.grad(loss)
        params = jnp.ones(4)
        for i in range(1000):
            params = params - 0.1 * grad(params, jnp.ones(4) * i)
        jnp.save("params.npy", params)
        """,
    )
    assert read.graph.width == 1
    assert [task.independent for task in read.graph.tasks if task.rounds] == [False]


def test_seeds_that_train_and_save_are_not_called_independent(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import torch
        for seed in range(4):
            model = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for batch in batches:
                model(batch).backward()
                optimizer.step()
            torch.save(model.state_dict(), f"model_{seed}.pt")
        """,
    )
    [task] = read.graph.tasks
    assert (task.kind, task.rounds, task.independent) == ("training", 4, False)
