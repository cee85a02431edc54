"""Serve the model over HTTP on this machine: GET /health, POST /generate {"prompt": "...", "max_tokens": 32}.

The GPUs are those of CUDA_VISIBLE_DEVICES, which `gpuyard run` and a lease set.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

import torch
from model import load, tokenizer, waited

LARGEST_REQUEST = 1 << 20
MOST_TOKENS = 2048


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.say(200, self.server.about) if self.path == "/health" else self.say(404, {"error": "try /health"})

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != "/generate" or not 0 < length <= LARGEST_REQUEST:
            self.close_connection = True
            return self.say(400, {"error": "send a prompt of at most 1 MiB to /generate"})
        try:
            asked = json.loads(self.rfile.read(length))
            prompt, most = str(asked["prompt"]), min(max(1, int(asked.get("max_tokens", 32))), MOST_TOKENS)
            return self.say(200, self.server.generate(prompt, most))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return self.say(400, {"error": f"{type(error).__name__}: {error}"})

    def say(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        """Requests are not logged."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address, model, words, about):
        super().__init__(address, Answering)
        self.model, self.words, self.about, self._one_at_a_time = model, words, about, Lock()

    def generate(self, prompt, most):
        tokens = self.words.encode(prompt) or [0]
        device = self.model.lm_head.weight.device
        with self._one_at_a_time:
            begin = waited(device)
            made = [
                int(chosen[0])
                for chosen in self.model.generate(torch.tensor([tokens], device=device), most, self.words.stop)
            ]
            seconds = waited(device) - begin
        return {
            "text": self.words.decode(made), "tokens": len(made), "seconds": round(seconds, 4),
            "tokens_per_second": round(len(made) / seconds, 2),
        }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("7b", "small"), default="7b")
    parser.add_argument("--weights", metavar="FOLDER", help="published weights; without it, random ones")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    asked = parser.parse_args()
    begin = waited(torch.device("cpu"))
    model, made_of = load(asked.size, folder=asked.weights)
    device = model.lm_head.weight.device
    about = {
        "model": f"deepseek-llm-{asked.size}", "weights": made_of, "device": str(device),
        "parameters": sum(weight.numel() for weight in model.parameters()), "load_seconds": round(waited(device) - begin, 2),
    }  # fmt: skip
    server = Server(("127.0.0.1", asked.port), model, tokenizer(asked.weights), about)
    print(json.dumps({**about, "url": f"http://127.0.0.1:{server.server_port}"}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
