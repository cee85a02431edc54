"""`gpuyard submit tasks.yaml`: one task or several, with defaults, sweeps and dependencies by name.

    defaults: {gpus: 1, timeout: 2h}
    tasks:
      - {name: prepare, command: python prepare.py, gpus: 0, cpu_count: 1}
      - {name: train, command: "python train.py --lr {lr}", sweep: {lr: [1e-3, 1e-4]}, depends_on: prepare}

The keys are the fields of a task request, plus the names with units (`gpus`, `gpu_memory`, `memory`), `sweep` and `zip`. An
error names the line and the key. Dependencies become positions in the batch, which is sorted so that they come first.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from gpuyard.cli.input.dependencies import NoSuchTask, WrongDependency, is_id
from gpuyard.cli.input.task_options import RequestFields
from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.document import InputDocument, Unreadable, parse
from gpuyard.input.error_location import FieldPath, format_path
from gpuyard.input.nearest_name import closest_word
from gpuyard.input.quantities import gpu_mebibytes_in, gpus_in, mebibytes_in, seconds_in
from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.input.sweep import MOST_POINTS, WrongSweep, axes_of, points_of, swept_tasks
from gpuyard.live.wire.tasks import TaskRequest

ENDINGS: Final = (".yaml", ".yml", ".json")
_OWN: Final = ("gpus", "gpu_memory", "memory", "sweep", "zip", "max_running")
KNOWN_KEYS: Final = (*TaskRequest.__struct_encode_fields__, *_OWN)
_DURATIONS: Final = ("timeout", "grace", "estimated_seconds")
_REFERENCES: Final = ("depends_on", "after_any")
_TASK: Final = Strict(TaskRequest)


class WrongTaskFile(WrongInput):
    """A task file cannot be understood."""


Named: TypeAlias = Callable[[str], list[str]]
"""Returns the tasks that were submitted before and that a name means, or raises `WrongDependency`."""


class TasksOfFile(NamedTuple):
    """What a task file submits."""

    requests: list[RequestFields]
    limits: list[dict[str, int]]
    """How many tasks of each sweep may run at the same time, as in the request of a batch."""


def read_tasks(content: bytes, source: str, typed: RequestFields, named: Named) -> TasksOfFile:
    """Return the requests of a task file, in an order in which dependencies come first. `typed`: options that override."""
    return _TaskFile(content, source, named).requests(typed)


class _TaskFile:
    def __init__(self, content: bytes, source: str, named: Named) -> None:
        self._source = source
        self._named = named
        try:
            self._document: InputDocument = parse(content)
        except Unreadable as error:
            raise WrongTaskFile(error.within(source)) from None

    def requests(self, typed: RequestFields) -> TasksOfFile:
        whole = self._mapping(self._document.value, ())
        if "tasks" in whole:
            self._check_keys(whole, ("tasks", "defaults"), (), "a task file with tasks")
            defaults = self._entry(whole.get("defaults") or {}, ("defaults",), {})
            for key in ("name", "sweep", "zip", "max_running", *_REFERENCES):
                if key in defaults:
                    self._fail(("defaults", key), f"{key} cannot be a default; give it in each task.")
            entries = self._entries(whole["tasks"], defaults)
        else:
            entries = [((), self._entry(whole, (), {}))]
        swept = [(path, self._swept(entry, path, typed)) for path, entry in entries]
        count = sum(len(requests) for _, requests in swept)
        if count > MOST_POINTS:
            raise WrongTaskFile(f"{self._source} has {count:,} tasks; the maximum is {MOST_POINTS:,}.")
        return self._in_order(swept, self._places_by_name(entries), [self._limit(*entry) for entry in entries])

    # --- one task -----------------------------------------------------------------------------------------------------

    def _entries(self, tasks: Any, defaults: dict[str, Any]) -> list[tuple[FieldPath, dict[str, Any]]]:
        if isinstance(tasks, Mapping):
            entries = [(("tasks", name), self._entry(task, ("tasks", name), defaults)) for name, task in tasks.items()]
            for (_, name), entry in entries:
                entry.setdefault("name", name)
        elif isinstance(tasks, list):
            entries = [
                (("tasks", place), self._entry(task, ("tasks", place), defaults)) for place, task in enumerate(tasks)
            ]
        else:
            self._fail(("tasks",), "tasks must be a list of tasks, or tasks by name.")
        if not entries:
            self._fail(("tasks",), "tasks is empty.")
        return list(entries)

    def _entry(self, given: Any, path: FieldPath, defaults: dict[str, Any]) -> dict[str, Any]:
        """Return a task with the fields of the API: defaults applied, units converted, everything checked."""
        task = self._mapping(given, path)
        self._check_keys(task, KNOWN_KEYS, path, "a task")
        entry: dict[str, Any] = {}
        for key, value in task.items():
            if value is not None:
                self._add(entry, key, value, path, task)
        merged = {**defaults, **entry}
        if defaults.get("env") and entry.get("env"):
            merged["env"] = {**defaults["env"], **entry["env"]}
        if path != ("defaults",) and "command" not in merged:
            self._fail(path, f"{format_path(path) or 'the task'} has no command.")
        self._check(merged, path)
        return merged

    def _add(self, entry: dict[str, Any], key: str, value: Any, path: FieldPath, task: Mapping[str, Any]) -> None:
        here = (*path, key)
        alias = {"gpus": "gpu_count", "memory": "memory_mb", "gpu_memory": "gpu_memory_mb"}.get(key)
        if alias and task.get(alias) is not None:
            self._fail(here, f"{key} and {alias} mean the same; remove one of them.")
        if key in _DURATIONS and isinstance(value, str):
            entry[key] = self._quantity(seconds_in, value, here)
        elif key == "gpus":
            entry["gpu_count"], model = self._quantity(gpus_in, value, here)
            if model is not None and task.get("gpu_model") is not None:
                self._fail(here, "gpus names a model, and gpu_model is given, too; remove one of them.")
            if model is not None:
                entry["gpu_model"] = model
        elif alias:
            is_share = task.get("gpu_fraction") not in {None, 1}
            entry[alias] = self._quantity(
                gpu_mebibytes_in if key == "gpu_memory" and not is_share else mebibytes_in, value, here
            )
        elif key in {"env", "secrets"} and isinstance(value, Mapping):
            entry[key] = {name: self._variable(item, (*here, name)) for name, item in value.items()}
        elif key == "array" and isinstance(value, int) and not isinstance(value, bool):
            entry[key] = {"count": value}
        elif key == "command" and isinstance(value, list):
            entry[key] = [self._variable(item, (*here, place)) for place, item in enumerate(value)]
        elif key in _REFERENCES:
            entry[key] = [
                str(one) if isinstance(one, int) else one for one in (value if isinstance(value, list) else [value])
            ]
            if not all(isinstance(one, str) and one for one in entry[key]):
                self._fail(here, f"{format_path(here)} must be the name or id of a task, or a list of them.")
        else:
            entry[key] = value

    def _variable(self, value: Any, path: FieldPath) -> Any:
        if isinstance(value, bool):
            self._fail(path, f"{format_path(path)} is {str(value).lower()}; write it in quotes.")
        return str(self._document.as_written(value, path)) if isinstance(value, int | float) else value

    def _quantity(self, read: Callable[[object], Any], value: Any, path: FieldPath) -> Any:
        try:
            return read(value)
        except ValueError as error:
            self._fail(path, f"{format_path(path)} is {value!r}; {error}.")

    def _check(self, entry: dict[str, Any], path: FieldPath) -> None:
        """Check what is not a name or a sweep as the scheduler does, without asking it."""
        fields = {
            key: value for key, value in entry.items() if key not in {"sweep", "zip", "max_running", *_REFERENCES}
        }
        try:
            _TASK.plain(fields)
        except WrongRequest as wrong:
            self._fail((*path, *wrong.path), str(wrong.within(*path)) if path else str(wrong))

    # --- several tasks ------------------------------------------------------------------------------------------------

    def _swept(self, entry: dict[str, Any], path: FieldPath, typed: RequestFields) -> list[RequestFields]:
        """Return the requests of a task: one, or one for each point of its sweep."""
        request = _with_options(entry, typed)
        sweep, side_by_side = entry.get("sweep"), entry.get("zip", False)
        if not isinstance(side_by_side, bool):
            self._fail((*path, "zip"), f"{format_path((*path, 'zip'))} must be true or false.")
        if sweep is None:
            return [request]
        here = (*path, "sweep")
        if not isinstance(sweep, Mapping) or not sweep:
            self._fail(here, f"{format_path(here)} must be lists of values by key.")
        if entry.get("array"):
            self._fail(here, f"{format_path(here)}: a sweep cannot be an array, too; add a key with the numbers.")
        try:
            points = points_of(axes_of(self._document.as_written(sweep, here)), side_by_side=side_by_side)
            swept = swept_tasks(request["command"], points, name=request["name"], env=request["env"])
        except WrongSweep as wrong:
            self._fail(here, f"{format_path(here)}: {wrong}")
        return [{**request, "command": one.command, "env": one.env, "name": one.name} for one in swept]

    def _limit(self, path: FieldPath, entry: dict[str, Any]) -> int | None:
        """Return how many tasks of an array or sweep may run at the same time; None: any number."""
        most = entry.get("max_running")
        if most is None:
            return None
        here = (*path, "max_running")
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            self._fail(here, f"{format_path(here)} must be a whole number above 0.")
        if entry.get("sweep") is None and not entry.get("array"):
            self._fail(here, f"{format_path(here)}: it needs sweep or array.")
        return most

    def _places_by_name(self, entries: list[tuple[FieldPath, dict[str, Any]]]) -> dict[str, int]:
        places: dict[str, int] = {}
        for place, (path, entry) in enumerate(entries):
            name = entry.get("name")
            if name and name in places:
                self._fail((*path, "name"), f"{format_path(path)}: the name {name!r} is given twice.")
            if name:
                places[name] = place
        return places

    def _in_order(
        self, swept: list[tuple[FieldPath, list[RequestFields]]], places: dict[str, int], most: list[int | None]
    ) -> TasksOfFile:
        """Return all requests, dependencies first and otherwise as in the file; names become positions."""
        needs = [
            {places[ref] for key in _REFERENCES for ref in requests[0].get(key) or () if ref in places}
            for _, requests in swept
        ]
        order: list[int] = []
        left = list(range(len(swept)))
        while left:
            free = next((place for place in left if needs[place] <= set(order)), None)
            if free is None:
                path = swept[left[0]][0]
                self._fail(path, f"{format_path(path)}: the tasks wait for each other in a circle.")
            order.append(free)
            left.remove(free)
        begins: dict[int, int] = {}
        together: list[RequestFields] = []
        limits: list[dict[str, int]] = []
        for place in order:
            begins[place] = len(together)
            path, requests = swept[place]
            for key in _REFERENCES:
                if requests[0].get(key):
                    refs = [
                        found
                        for ref in requests[0][key]
                        for found in self._references(ref, path, key, swept, places, begins)
                    ]
                    requests = [{**request, key: refs} for request in requests]
            if (max_running := most[place]) is not None:
                limits.append({"first": len(together), "count": len(requests), "max_running": max_running})
            together += requests
        return TasksOfFile(together, limits)

    def _references(
        self,
        ref: str,
        path: FieldPath,
        key: str,
        swept: list[tuple[FieldPath, list[RequestFields]]],
        places: dict[str, int],
        begins: dict[int, int],
    ) -> list[str]:
        place = places.get(ref)
        if place is not None:
            return [f"tasks[{begins[place] + number}]" for number in range(len(swept[place][1]))]
        if is_id(ref):
            return [ref]
        here = format_path((*path, key))
        try:
            return self._named(ref)
        except NoSuchTask:
            near = closest_word(ref, places)
            hint = f"did you mean {near!r}?" if near else "name a task of this file, or one that was submitted before."
            self._fail((*path, key), f"{here}: there is no task {ref!r}; {hint}")
        except WrongDependency as wrong:
            self._fail((*path, key), f"{here}: {wrong}.")

    # --- errors -------------------------------------------------------------------------------------------------------

    def _mapping(self, value: Any, path: FieldPath) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            self._fail(
                path,
                f"{format_path(path) or 'a task file'} must have keys and values, such as command: python train.py.",
            )
        found: Mapping[str, Any] = value
        return found

    def _check_keys(self, given: Mapping[str, Any], known: tuple[str, ...], path: FieldPath, what: str) -> None:
        for key in given:
            if key not in known:
                near = closest_word(key, known)
                hint = f"did you mean {near}?" if near else f"known keys: {', '.join(known)}."
                self._fail((*path, key), f"{key!r} is not a key of {what}; {hint}")

    def _fail(self, path: FieldPath, sentence: str) -> NoReturn:
        try:
            line = self._document.line_of(path)
        except Unreadable:  # JSON may have what YAML has not
            line = None
        raise WrongTaskFile(f"{self._source}, line {line}: {sentence}" if line else f"{self._source}: {sentence}")


def _with_options(entry: Mapping[str, Any], typed: RequestFields) -> RequestFields:
    """Return a task of the file as a request of the client, with the options of the command line on top."""
    request: RequestFields = {
        "name": None,
        **{key: value for key, value in entry.items() if key not in {"sweep", "zip", "max_running"}},
    }
    if "class" in request:
        request["task_class"] = request.pop("class")
    mine = {
        key: value for key, value in typed.items() if value is not None and key not in {"command", "env", "work_dir"}
    }
    typed_env = typed.get("env") or {}
    request |= mine
    request["secrets"] = {**(entry.get("secrets") or {}), **(typed.get("secrets") or {})} or None
    request["env"] = {**(entry.get("env") or {}), **typed_env} or None
    request["work_dir"] = request.get("work_dir") or typed.get("work_dir")
    return request
