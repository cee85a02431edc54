"""A policy of one's own: read from a Python file or an installed module, without a change to gpuyard.

    gpuyard simulate --policy mine.py:POLICY,fifo …        the file mine.py assigns a Policy to the name POLICY
    gpuyard simulate --policy lab.policies:POLICY …        an installed module does

Only the simulator accepts such policies. A live scheduler records the name of its policy in the journal, and every
process that reads the journal must know it, so a live policy is part of the package. The functions of the policy are
checked while they run: an exception, or a result that is not a number, ends the simulation with one sentence.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from math import isnan
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.input.error_location import shortened
from gpuyard.input.files import LARGEST_TEXT_BYTES, open_file, shown_path, size_words

FUNCTIONS = ("key", "tenant_key", "rank", "spares", "changes_at")
LONGEST_ERROR = 200
"""Characters of an exception that are shown."""
OPTIONAL_RESULT = "changes_at"
"""The function that may also return None."""


class WrongPolicy(WrongInput):
    """The policy of a file or module cannot be used."""


def load_policy(source: str, name: str) -> Policy:
    """Return the policy `name` of a file whose name ends in .py, or of a module."""
    shown = f"{shown_path(source)}:{shortened(name)}"
    if not source:
        raise WrongPolicy(f"{shown} names no file; write it before the colon: mine.py{shown}.")
    module = _from_file(Path(source)) if source.endswith(".py") else _from_module(source)
    if name not in vars(module):
        others = ", ".join(other for other, value in vars(module).items() if isinstance(value, Policy))
        has = f"its policies: {others}" if others else "it has no policy; assign a gpuyard Policy to a name"
        raise WrongPolicy(f"{shown_path(source)} has no {shortened(name)!r}; {has}.")
    found = getattr(module, name)
    if not isinstance(found, Policy):
        raise WrongPolicy(f"{shown} is {_kind(found)}; it must be a gpuyard.core.engine.policies.policy.Policy.")
    return guarded(found, shown)


def guarded(policy: Policy, shown: str) -> Policy:
    """Return the policy with functions that raise `WrongPolicy` instead of failing; `shown` names it in messages."""
    name: object = policy.name
    if not isinstance(name, str) or not name:
        raise WrongPolicy(f"Policy {shown}: its name must be text.")
    checked: dict[str, Any] = {}
    for part in FUNCTIONS:
        call = getattr(policy, part)
        if call is None and part != "key":
            continue
        if not callable(call):
            raise WrongPolicy(f"Policy {shown}: {part} is {_kind(call)}; it must be a function.")
        checked[part] = _guarded(call, part, shown)
    return replace(policy, **checked)


def _guarded(call: Callable[..., Any], part: str, shown: str) -> Callable[..., Any]:
    def guard(*args: object) -> Any:
        try:
            value = call(*args)
        except Exception as error:
            raise WrongPolicy(f"Policy {shown} failed: {part} raised {_sentence(error)}.") from error
        if value is None and part == OPTIONAL_RESULT:
            return None
        if not isinstance(value, int | float) or isnan(value):
            must = "a number or None" if part == OPTIONAL_RESULT else "a number"
            raise WrongPolicy(f"Policy {shown} failed: {part} returned {shortened(repr(value))}; it must be {must}.")
        return value

    return guard


def _from_file(path: Path) -> ModuleType:
    module = ModuleType(f"gpuyard_policy_{path.stem}")
    module.__file__ = str(path)
    try:
        with open_file(path) as file:
            text = file.read(LARGEST_TEXT_BYTES + 1)
    except OSError as error:
        raise WrongPolicy(f"Policy file {shown_path(path)} cannot be read: {error.strerror}.") from None
    if len(text) > LARGEST_TEXT_BYTES:
        raise WrongPolicy(f"Policy file {shown_path(path)} is larger than {size_words(LARGEST_TEXT_BYTES)}.")
    sys.modules[module.__name__] = module  # classes that the file defines look themselves up there
    _run(lambda: exec(_compiled(text, path), vars(module)), f"Policy file {shown_path(path)}")  # noqa: S102 - the user's
    return module


def _compiled(text: bytes, path: Path) -> CodeType:
    return compile(text, str(path), "exec")


def _from_module(name: str) -> ModuleType:
    found: list[ModuleType] = []
    try:
        _run(lambda: found.append(import_module(name)), f"Module {shortened(name)}", ModuleNotFoundError)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name != name and not name.startswith(f"{error.name}."):
            raise WrongPolicy(f"Module {shortened(name)} cannot be loaded: {_sentence(error)}.") from None
        raise WrongPolicy(
            f"There is no module {shortened(name)!r}; install it, add its folder to PYTHONPATH, or name a file that "
            "ends in .py."
        ) from None
    return found[0]


def _run(load: Callable[[], object], what: str, but: type[Exception] | tuple[()] = ()) -> None:
    try:
        load()
    except but:
        raise
    except (Exception, SystemExit) as error:
        raise WrongPolicy(f"{what} cannot be loaded: {_sentence(error)}.") from error


def _sentence(error: BaseException) -> str:
    """Return an exception on one line, without a full stop."""
    text = " ".join(str(error).split())[:LONGEST_ERROR].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
