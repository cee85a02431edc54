"""Measure load time, memory and tokens per second, as one JSON object.

gpuyard run -g 1 -- python measure.py --weights /models/deepseek-llm-7b-base
python measure.py --size small --batch 1 --batch 2
"""

import argparse
import json
import platform
import resource
from statistics import median

import torch
from model import load, waited


def measured(model, batch, prompt, count, repeats):
    """Tokens per second of reading the prompt, and of generating: medians, after one run that is not counted."""
    device = model.lm_head.weight.device
    tokens = torch.randint(model.shape.vocabulary, (batch, prompt), device=device)
    reading, making = [], []
    for number in range(repeats + 1):
        begin = waited(device)
        steps = model.generate(tokens, count)
        next(steps)
        first = waited(device)
        made = sum(1 for _ in steps)
        end = waited(device)
        if number:
            reading.append(batch * prompt / (first - begin))
            making.append(batch * made / (end - first))
    return {
        "batch": batch, "prompt_tokens": prompt, "new_tokens": count,
        "prompt_tokens_per_second": round(median(reading), 1), "new_tokens_per_second": round(median(making), 1),
        "new_tokens_per_second_of_one": round(median(making) / batch, 2),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("7b", "small"), default="7b")
    parser.add_argument("--weights", metavar="FOLDER", help="published weights; without it, random ones")
    parser.add_argument("--batch", type=int, action="append", help="batch size; repeat for several (default: 1, 8, 32)")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    begin = waited(torch.device("cpu"))
    model, made_of = load(asked.size, folder=asked.weights)
    device = model.lm_head.weight.device
    load_seconds = waited(device) - begin
    on_gpu = device.type == "cuda"
    rows = [
        measured(model, batch, asked.prompt_tokens, asked.new_tokens, asked.repeats)
        for batch in asked.batch or (1, 8, 32)
    ]
    print(json.dumps({
        "model": f"deepseek-llm-{asked.size}", "weights": made_of,
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or "cpu",
        "torch": torch.__version__, "dtype": str(model.lm_head.weight.dtype).removeprefix("torch."),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "load_seconds": round(load_seconds, 2),
        "weights_mib": round(sum(weight.nbytes for weight in model.parameters()) / 2**20, 1),
        "peak_gpu_memory_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1) if on_gpu else None,
        "peak_host_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1),
        "runs": rows,
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
