"""Lease a GPU from gpuyard, serve the model on it, ask it something, and give the GPU back.

python run.py                              random weights of the size of deepseek-llm-7b
python run.py --weights /models/deepseek   published weights
python run.py --size small                 for a machine without a GPU
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import gpuyard

HERE = Path(__file__).parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("7b", "small"), default="7b")
    parser.add_argument("--weights", metavar="FOLDER", help="published weights; without it, random ones")
    parser.add_argument("--prompt", default="The capital of France is", help="what the model continues")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--api", metavar="URL", help="address of the scheduler (default: GPUYARD_SERVER)")
    asked = parser.parse_args()
    cluster = gpuyard.connect(asked.api)
    with cluster.lease(gpus=1, timeout=3600, wait_seconds=600, name="deepseek") as lease:
        print(f"lease {lease.id}: {', '.join(lease.gpus)}", flush=True)
        if lease.node_id not in {socket.gethostname(), socket.getfqdn()} and not on_this_machine(cluster):
            sys.exit(
                f"The GPU is on node {lease.node_id}. Run this program there, or as a task: gpuyard run -g 1 -- python serve.py"
            )
        words = [sys.executable, HERE / "serve.py", "--size", asked.size]
        words += ["--weights", asked.weights] if asked.weights else []
        server = subprocess.Popen(words, env=os.environ | lease.env, stdout=subprocess.PIPE, text=True)
        try:
            line = server.stdout.readline()
            if not line:
                sys.exit("The server did not start; its error is above.")
            about = json.loads(line)
            print(
                f"{about['model']}, {about['parameters']:,} parameters on {about['device']}, loaded in {about['load_seconds']} s"
            )
            if about["weights"] == "random weights":
                print("The weights are random: speed and memory are those of the model, the text means nothing.")
            body = json.dumps({"prompt": asked.prompt, "max_tokens": asked.max_tokens}).encode()
            with urlopen(Request(f"{about['url']}/generate", body), timeout=600) as answer:
                told = json.load(answer)
            print(f"{asked.prompt!r} → {told['text']!r}")
            print(f"{told['tokens']} tokens in {told['seconds']} s: {told['tokens_per_second']} tokens/s")
        finally:
            server.terminate()
            server.wait()
            server.stdout.close()
    print("the GPU is free again")


def on_this_machine(cluster):
    """Whether the cluster is one of `gpuyard up` on this machine, whose only node is here."""
    return "//127.0.0.1" in cluster.connection.server and len(cluster.nodes().nodes) == 1


if __name__ == "__main__":
    main()
