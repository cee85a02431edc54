"""Pictures are drawn, made smaller and inverted, each with files of its own."""

import numpy as np
from PIL import Image


def draw(number, path):
    values = (np.arange(64).reshape(8, 8) * (number + 1) % 256).astype(np.uint8)
    np.save(path, values)


def shrink(source, target):
    picture = Image.fromarray(np.load(source)).resize((4, 4))
    np.save(target, np.asarray(picture))


for number in range(3):
    draw(number, f"picture_{number}.npy")
for number in range(3):
    shrink(f"picture_{number}.npy", f"small_{number}.npy")
