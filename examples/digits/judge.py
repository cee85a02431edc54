"""Print how many test digits each model classifies correctly, and all of them together."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from train import make_model


@torch.no_grad()
def votes(path, images):
    model = make_model()
    model.load_state_dict(torch.load(path, map_location="cpu"))
    model.eval()
    return model(images).softmax(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="work/digits.npz")
    parser.add_argument("--models", default="work")
    parser.add_argument("--out", default="work/scores.json")
    args = parser.parse_args()
    data = np.load(args.data)
    images, labels = torch.from_numpy(data["test_images"])[:, None], torch.from_numpy(data["test_labels"])
    found = {path.name: votes(path, images) for path in sorted(Path(args.models).glob("model_*.pt"))}
    scores = {name: (vote.argmax(1) == labels).float().mean().item() for name, vote in found.items()}
    scores["together"] = (sum(found.values()).argmax(1) == labels).float().mean().item()
    Path(args.out).write_text(json.dumps(scores, indent=2) + "\n")
    print(scores)


if __name__ == "__main__":
    main()
