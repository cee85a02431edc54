"""`command: [program, …]`: a program that holds the model, and answers a line of JSON with a line of JSON.

Starting it loads the model; its first line of output reports that it has loaded. Each call is one line on its standard
input, `{"request", "node", "attempt", "input", "results"}`; its next line is the answer. To unload, its input is
closed.
"""

import json
import subprocess
from contextlib import suppress
from typing import Any

from gpuyard.plan.workers.order import CallInput, Order

PATIENCE_S = 5.0
"""How long a program that was told to end may take."""


class ProgramEnded(Exception):
    """The program that held the model has ended."""


class _Program:
    def __init__(self, words: list[str]) -> None:
        self._name = words[0]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ProgramEnded(f"{self._name} ended with exit code {self._process.wait()}")
        return line

    def call(self, question: CallInput, seconds: float) -> Any:  # noqa: ARG002
        assert self._process.stdin is not None
        said = {
            "request": question.request,
            "node": question.node,
            "attempt": question.attempt,
            "input": question.input,
            "results": question.results,
        }
        with suppress(BrokenPipeError):  # it has ended; its exit code is reported below
            self._process.stdin.write(json.dumps(said) + "\n")
            self._process.stdin.flush()
        return json.loads(self._line())

    def close(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def load(order: Order) -> _Program:
    """Start the program and wait for its first line."""
    return _Program([str(word) for word in order.runtime.settings["command"]])
