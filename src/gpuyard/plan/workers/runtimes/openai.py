"""`openai: URL`: a server with OpenAI's chat completions API, such as vLLM or SGLang, on Python's own HTTP client.

Loading asks the server whether it has the model; the server itself loads it onto GPUs. A call sends one message: the
`prompt` of the file, filled in with the request's input and the earlier results, or the request's own `messages`. Its
answer is the text of the response.
"""

import json
import os
from http.client import HTTPConnection, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from gpuyard.plan.workers.order import CallInput, Order

TIMEOUT_S = 600.0


class ServerRefused(Exception):
    """The server of the model said no."""


class _Server:
    def __init__(self, settings: Any) -> None:
        self._url = settings["openai"].rstrip("/")
        self._model = settings["model"]
        self._prompt = settings.get("prompt")
        self._options = dict(settings.get("options", {}))
        names = [one["id"] for one in self._ask("GET", "/models")["data"]]
        if self._model not in names:
            raise ServerRefused(f"{self._url} has no model {self._model!r}; it has {', '.join(names) or 'none'}")

    def call(self, question: CallInput, seconds: float) -> Any:  # noqa: ARG002
        body = {"model": self._model, "messages": self._messages(question), **self._options}
        return self._ask("POST", "/chat/completions", body)["choices"][0]["message"]["content"]

    def _messages(self, question: CallInput) -> Any:
        if isinstance(question.input, dict) and "messages" in question.input:
            return question.input["messages"]
        if self._prompt is not None:
            text = self._prompt.format(input=question.input, results=question.results, request=question.request)
        else:
            parts = [question.input, *question.results.values()]
            text = "\n\n".join(str(part) for part in parts if part is not None)
        return [{"role": "user", "content": text}]

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        where = urlsplit(self._url)
        kind = HTTPSConnection if where.scheme == "https" else HTTPConnection
        connection = kind(where.hostname or "", where.port, timeout=TIMEOUT_S)
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        try:
            connection.request(method, where.path + path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise ServerRefused(f"{self._url}{path} answered {answer.status}: {content[:200].decode(errors='replace')}")
        return json.loads(content)

    def close(self) -> None:
        """Do nothing: the server keeps its models."""


def load(order: Order) -> _Server:
    """Check that the server has the model."""
    return _Server(order.runtime.settings)
