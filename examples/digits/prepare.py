"""Draw digits: seven strokes as on an old display, moved, scaled and with noise, so that nothing has to be downloaded."""

import argparse
from pathlib import Path

import numpy as np

STROKES = {
    "top": (slice(2, 4), slice(4, 12)),
    "middle": (slice(7, 9), slice(4, 12)),
    "bottom": (slice(12, 14), slice(4, 12)),
    "upper_left": (slice(2, 9), slice(4, 6)),
    "upper_right": (slice(2, 9), slice(10, 12)),
    "lower_left": (slice(7, 14), slice(4, 6)),
    "lower_right": (slice(7, 14), slice(10, 12)),
}
DIGITS = [
    "top bottom upper_left upper_right lower_left lower_right",
    "upper_right lower_right",
    "top middle bottom upper_right lower_left",
    "top middle bottom upper_right lower_right",
    "middle upper_left upper_right lower_right",
    "top middle bottom upper_left lower_right",
    "top middle bottom upper_left lower_left lower_right",
    "top upper_right lower_right",
    "top middle bottom upper_left upper_right lower_left lower_right",
    "top middle bottom upper_left upper_right lower_right",
]


def draw(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    images = np.zeros((count, 16, 16), dtype=np.float32)
    for image, label in zip(images, labels, strict=True):
        for stroke in DIGITS[label].split():
            image[STROKES[stroke]] = rng.uniform(0.5, 1.0)
        image[:] = np.roll(image, rng.integers(-2, 3, 2), axis=(0, 1))
    return images + rng.normal(0, 0.35, images.shape).astype(np.float32), labels


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="work/digits.npz")
    parser.add_argument("--count", type=int, default=6000)
    args = parser.parse_args()
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    images, labels = draw(args.count, seed=0)
    test_images, test_labels = draw(args.count // 5, seed=1)
    np.savez(args.out, images=images, labels=labels, test_images=test_images, test_labels=test_labels)


if __name__ == "__main__":
    main()
