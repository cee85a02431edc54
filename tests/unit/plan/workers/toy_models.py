"""Models for tests: loaded by workers, in processes of their own."""

import os
import sys
from threading import Event
from typing import Any


class Echo:
    def __init__(self, word: str = "echo") -> None:
        self.word = word

    def __call__(self, question: Any) -> Any:
        if question.input == "fail":
            raise ValueError("as asked for")
        if question.input == "exit":
            sys.exit(3)
        if question.input == "die":
            os._exit(7)
        if question.input == "lock":
            import threading

            return threading.Lock()
        if question.input == "large":
            return b"x" * (3 << 20)
        return {
            "said": f"{self.word} {question.input}",
            "from": {node: len(result) for node, result in question.results.items()},
            "sees": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "pid": os.getpid(),
        }


_came = Event()


class Comes:
    """Tells that it was loaded."""

    def __init__(self) -> None:
        _came.set()

    def __call__(self, _question: Any) -> str:
        return "here"


class Waits:
    """Answers when the other model was loaded in the same process."""

    def __call__(self, _question: Any) -> str:
        return "it came" if _came.wait(30.0) else "it did not come"


class Broken:
    def __init__(self) -> None:
        raise MemoryError("no room for it")
