"""A training state that each update returns anew, with momentum, and a score at the end."""

import json
from functools import partial
from typing import NamedTuple

import numpy as np
import small_jax as jax


class State(NamedTuple):
    params: np.ndarray
    momentum: np.ndarray
    step: int


def loss(params, x, y):
    return np.mean((np.tanh(x @ params) - y) ** 2)


def update(state, x, y, rate):
    g = jax.grad(loss)(state.params, x, y)
    momentum = 0.9 * state.momentum + g
    return State(state.params - rate * momentum, momentum, state.step + 1)


rng = np.random.default_rng(1)
x = rng.normal(size=(16, 2))
y = np.sign(x[:, 0])
state = State(np.zeros(2), np.zeros(2), 0)
step = partial(update, rate=0.05)
for _ in range(20):
    state = step(state, x, y)
np.save("params.npy", state.params)
with open("score.json", "w") as file:
    json.dump({"loss": float(loss(state.params, x, y)), "steps": state.step}, file)
