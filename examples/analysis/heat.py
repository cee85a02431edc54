"""The heat equation on a grid: every step of time needs the one before."""

import numpy as np

u = np.zeros((16, 16))
u[4:8, 4:8] = 1.0
for step in range(40):
    u[1:-1, 1:-1] += 0.2 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    if step % 10 == 0:
        np.save(f"u_{step}.npy", u)
np.save("final.npy", u)
