"""The file of runtimes: how each model of a problem is run, and the input of each request. YAML or JSON, read strictly.

models:
  embed:   {python: "my_models:Embedder", options: {size: 64}}
  rank:    {command: [./rank, --quietly]}
  write:   {openai: "http://127.0.0.1:8000/v1", model: tiny, prompt: "{input}: {results[rank]}"}
  "*":     {virtual: {drift: 0.3, seed: 7}}          # all others
inputs:    {r0: "a question", r1: "another one"}   # by request; may be left out
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec
from shutil import which
from typing import Any, Final

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input import strict
from gpuyard.input.nearest_name import closest_word
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.workers.order import Runtime

ALL_OTHERS: Final = "*"
KEYS: Final = {
    "python": ("options", "preload"),
    "command": (),
    "openai": ("model", "prompt", "options"),
    "virtual": (),
}
"""The keys allowed next to the name of a runtime."""


class _Virtual(msgspec.Struct, forbid_unknown_fields=True):
    drift: float = 0.0
    seed: int = 0
    fails: float = 0.0


_VIRTUAL: Final = strict.Strict(_Virtual, what="virtual")


@dataclass(frozen=True, slots=True)
class Runtimes:
    """The runtime of each model of a problem, by number, and the input of each request that has one."""

    of_model: list[Runtime]
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def preloads(self) -> list[bool]:
        """Whether each model may be loaded while another one is called."""
        return [bool(runtime.settings.get("preload", True)) for runtime in self.of_model]

    @property
    def are_virtual(self) -> bool:
        """Whether no model is really computed."""
        return all(runtime.name == "virtual" for runtime in self.of_model)


def all_virtual(problem: Problem) -> Runtimes:
    """Return virtual runtimes for all models, for a run without a file of runtimes."""
    return Runtimes([Runtime("virtual")] * len(problem.models))


def read_runtimes(said: Any, problem: Problem, folders: list[str], *, here: bool = False) -> Runtimes:
    """Convert the parsed file. Modules of `python` are looked up in `folders` first.

    `here`: models are run on this machine, so a missing module or program is an error.
    """
    if not isinstance(said, dict) or not isinstance(said.get("models"), dict):
        raise WrongInput("models is missing: specify how to run each model.")
    for key in said:
        if key not in {"models", "inputs"}:
            raise WrongInput(_unknown(key, ("models", "inputs")))
    names = [model.name for model in problem.models]
    for name in said["models"]:
        if name not in {*names, ALL_OTHERS}:
            raise WrongInput(f"models: the problem has no model {name!r}{_nearest(name, names)}")
    found = []
    for name in names:
        if name not in said["models"] and ALL_OTHERS not in said["models"]:
            raise WrongInput(f'models: {name!r} is missing; specify how to run it, or use "*" for all others.')
        where = name if name in said["models"] else ALL_OTHERS
        found.append(_runtime(f"models.{where}", said["models"][where], folders))
        if here:
            _is_here(f"models.{where}", found[-1])
    return Runtimes(found, _inputs(said.get("inputs") or {}, problem))


def _inputs(said: Any, problem: Problem) -> Mapping[str, Any]:
    if not isinstance(said, dict):
        raise WrongInput("inputs must map requests to their inputs.")
    known = set(problem.requests.ids)
    for request in said:
        if request not in known:
            raise WrongInput(f"inputs: the problem has no request {request!r}.")
    return said


def _runtime(place: str, said: Any, folders: list[str]) -> Runtime:
    said = {"virtual": {}} if said == "virtual" else said
    if not isinstance(said, dict) or len(kinds := [key for key in said if key in KEYS]) != 1:
        raise WrongInput(f"{place}: specify one runtime: {', '.join(KEYS)}.")
    kind = kinds[0]
    for key in said:
        if key != kind and key not in KEYS[kind]:
            raise WrongInput(f"{place}: {_unknown(key, KEYS[kind])}")
    check = {"python": _python, "command": _command, "openai": _openai, "virtual": _virtual}[kind]
    return Runtime(kind, check(place, said) | ({"folders": folders} if kind == "python" else {}))


def _is_here(place: str, runtime: Runtime) -> None:
    """Raise an error for what would fail at the first load, after planning. Modules are looked up but not imported."""
    match runtime.name:
        case "python":
            module = runtime.settings["python"].partition(":")[0].partition(".")[0]
            if module not in sys.modules and not PathFinder.find_spec(module, runtime.settings["folders"]) and not find_spec(module):  # fmt: skip
                raise WrongInput(
                    f"{place}.python: module {module!r} was found neither next to the file nor on the "
                    "Python path."
                )  # fmt: skip
        case "command":
            program = str(runtime.settings["command"][0])
            if which(program) is None:
                raise WrongInput(f"{place}.command: {program!r} is not an executable program.")


def _python(place: str, said: dict[str, Any]) -> dict[str, Any]:
    module, colon, name = str(said["python"]).partition(":")
    if not (module and colon and name):
        raise WrongInput(f"{place}.python is {said['python']!r}; it must be module:name.")
    if not isinstance(said.get("preload", True), bool):
        raise WrongInput(f"{place}.preload is {said['preload']!r}; it must be true or false.")
    return said | {"options": _options(place, said)}


def _command(place: str, said: dict[str, Any]) -> dict[str, Any]:
    words = said["command"]
    if not isinstance(words, list) or not words:
        raise WrongInput(f"{place}.command must be a list of a program and its arguments.")
    return said


def _openai(place: str, said: dict[str, Any]) -> dict[str, Any]:
    if not str(said["openai"]).startswith(("http://", "https://")):
        raise WrongInput(f"{place}.openai is {said['openai']!r}; it must be the address of the server, with http://.")
    if not isinstance(said.get("model"), str):
        raise WrongInput(f"{place}.model is missing: the name of the model on the server.")
    return said | {"options": _options(place, said)}


def _virtual(place: str, said: dict[str, Any]) -> dict[str, Any]:
    try:
        read = _VIRTUAL.plain(said["virtual"] or {})
    except strict.WrongRequest as error:
        raise WrongInput(f"{place}.virtual: {error}") from None
    if not 0 <= read.drift < 1 or not 0 <= read.fails <= 1:
        raise WrongInput(f"{place}.virtual: drift and fails must be fractions from 0 to 1.")
    return msgspec.to_builtins(read)  # type: ignore[no-any-return]


def _options(place: str, said: dict[str, Any]) -> dict[str, Any]:
    options = said.get("options", {})
    if not isinstance(options, dict):
        raise WrongInput(f"{place}.options must be a mapping.")
    return options


def _unknown(key: str, known: tuple[str, ...]) -> str:
    return f"unknown key {key!r}{_nearest(key, known)}"


def _nearest(word: str, known: Any) -> str:
    near = closest_word(str(word), known)
    return f"; did you mean {near!r}?" if near else "."
