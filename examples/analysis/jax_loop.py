"""Functional updates: gradients of a loss, params = params - rate * gradient."""

import numpy as np
import small_jax as jax


def loss(params, x, y):
    return np.mean((x @ params - y) ** 2)


rng = np.random.default_rng(0)
x = rng.normal(size=(32, 3))
y = x @ np.array([1.0, -2.0, 0.5])
params = np.zeros(3)
gradient = jax.jit(jax.grad(loss))
for step in range(50):
    g = gradient(params, x, y)
    params = params - 0.1 * g
np.save("params.npy", params)
