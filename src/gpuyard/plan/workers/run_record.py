"""The record of a run: every call and load as it ends, one line of JSON each, in a file that survives a killed run.

    {"format": "plan-run/1", "instance": "lab", "calls": 600}
    {"model": "chat", "seconds": 3.2, "end": 3.2}                                         a load
    {"request": "r0", "node": "draft", "seconds": 4.1, "result": "gASV…", "workflow": "answer",      a call, and its
     "gpu": 0, "start": 3.2, "end": 7.3}                                                             pickled result

`start` and `end` are seconds of the plan's clock, which a later run continues where the record ends. A later run with the same file does not repeat the calls in it and appends its own. The measured times can also be used
to plan the next problem with the same models and workflows. A last line that was cut off is ignored and overwritten.
"""

import base64
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import IO, Final

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.files import AnyPath, path_of, shown_path
from gpuyard.plan.executor.execution_state import NOWHERE
from gpuyard.plan.executor.executor import Run
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.workers.packed import Packed

FORMAT: Final = "plan-run/1"


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    instance: str
    calls: int


class _Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    seconds: float
    """On a GPU of speed 1."""
    request: str = ""
    node: str = ""
    result: str = ""
    model: str = ""
    workflow: str = ""
    gpu: int = NOWHERE
    start: float = 0.0
    end: float = 0.0
    """0 in records of earlier versions, which have no times."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a record contains."""

    instance: str = ""
    calls: int = 0
    results: Mapping[tuple[str, str], Packed] = field(default_factory=dict)
    """The results of the calls that are done, by request and node."""
    call_seconds: Mapping[tuple[str, str], list[float]] = field(default_factory=dict)
    """The measured durations of calls, by workflow and node."""
    load_seconds: Mapping[str, list[float]] = field(default_factory=dict)
    """The measured load times, by model."""
    places: Mapping[tuple[str, str], tuple[int, float, float]] = field(default_factory=dict)
    """Where and when calls ran, by request and node: the first GPU, start and end."""
    clock_s: float = 0.0
    """The time of the plan at the last line."""
    length: int = 0
    """The number of bytes up to the end of the last whole line."""

    def done(self, problem: Problem) -> dict[int, Packed]:
        """Return the calls of this problem that are done. Raise `WrongInput` if the record is that of another one."""
        if self.length and (self.instance, self.calls) != (problem.name, len(problem.calls)):
            raise WrongInput(
                f"it is the record of {self.instance!r} with {self.calls:,} calls, but the problem is "
                f"{problem.name!r} with {len(problem.calls):,} calls."
            )
        return {
            call: self.results[name]
            for call in range(len(problem.calls))
            if (name := names_of(problem, call)) in self.results
        }

    def runs(self, problem: Problem) -> list[Run]:
        """Return the calls that are done, with their places and times as far as these were recorded."""
        done = ((call, self.places.get(names_of(problem, call))) for call in self.done(problem))
        return [Run(call, *place) for call, place in done if place is not None]


def names_of(problem: Problem, call: int) -> tuple[str, str]:
    """Return the request and the node of a call."""
    request, _, node = problem.name_of(call).rpartition("/")
    return request, node


def _workflow_of(problem: Problem, call: int) -> str:
    return problem.workflows[int(problem.requests.workflow[problem.calls.request[call]])].name


def read_record(path: AnyPath, *, may_be_missing: bool = False) -> RunRecord:
    """Read a record. `may_be_missing`: a missing or empty file is an empty one."""
    path = path_of("record", path)
    try:
        content = path.read_bytes()
    except OSError as error:
        if may_be_missing and isinstance(error, FileNotFoundError):
            return RunRecord()
        raise WrongInput(f"{shown_path(path)}: {error.strerror}.") from None
    whole = content[: content.rfind(b"\n") + 1]
    if not content and may_be_missing:
        return RunRecord()
    head, *lines = whole.splitlines() or [b""]
    try:
        said = msgspec.json.decode(head, type=_Head)
        read = [msgspec.json.decode(line, type=_Line) for line in lines]
    except msgspec.MsgspecError:
        said, read = _Head("", "", 0), []
    if said.format != FORMAT:
        raise WrongInput(f"{shown_path(path)}: this is not the record of a run, as `plan run --resume` writes it.")
    results: dict[tuple[str, str], Packed] = {}
    places: dict[tuple[str, str], tuple[int, float, float]] = {}
    calls, loads = defaultdict(list), defaultdict(list)
    for line in read:
        if line.model:
            loads[line.model].append(line.seconds)
        else:
            results[line.request, line.node] = Packed(base64.b64decode(line.result))
            calls[line.workflow, line.node].append(line.seconds)
            if line.gpu != NOWHERE:
                places[line.request, line.node] = (line.gpu, line.start, line.end)
    clock_s = max((line.end for line in read), default=0.0)
    return RunRecord(said.instance, said.calls, results, calls, loads, places, clock_s, len(whole))


def with_measured_times(problem: Problem, record: RunRecord) -> Problem:
    """Return the problem with the mean measured durations of its nodes and load times of its models, where known."""
    seconds = problem.calls.seconds.copy()
    for call in range(len(problem.calls)):
        measured = record.call_seconds.get((_workflow_of(problem, call), names_of(problem, call)[1]))
        if measured:
            seconds[call] = fmean(measured)
    models = tuple(
        replace(model, load_s=fmean(record.load_seconds[model.name])) if model.name in record.load_seconds else model
        for model in problem.models
    )
    return replace(problem, models=models, calls=replace(problem.calls, seconds=seconds))


class RecordWriter:
    """Appends to a record. Every line is given to the operating system at once, so a killed run loses none."""

    def __init__(self, path: AnyPath, problem: Problem, record: RunRecord) -> None:
        self._problem = problem
        path = path_of("record", path)
        try:
            self._file: IO[bytes] = path.open("r+b" if record.length else "wb", buffering=0)
        except OSError as error:
            raise WrongInput(f"Cannot write {shown_path(path)}: {error.strerror}.") from None
        self._file.truncate(record.length)
        self._file.seek(record.length)
        if not record.length:
            self._write(_Head(FORMAT, problem.name, len(problem.calls)))

    def called(self, run: Run, seconds: float, result: Packed | None) -> None:
        """Record a call that is done, before its result may be dropped."""
        content = b"" if result is None else result.content
        if isinstance(content, Path):
            content = content.read_bytes()
        request, node = names_of(self._problem, run.call)
        packed = base64.b64encode(content).decode()
        workflow = _workflow_of(self._problem, run.call)
        self._write(_Line(seconds, request, node, packed, "", workflow, run.gpu, run.start_s, run.end_s))

    def loaded(self, model: int, seconds: float, end_s: float) -> None:
        """Record a load that ended at this time of the plan."""
        self._write(_Line(seconds, model=self._problem.models[model].name, end=end_s))

    def _write(self, line: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._file.close()
