"""The values of sbatch's options. Each function raises ValueError with the reason, as the end of a sentence."""

import re
from dataclasses import dataclass
from typing import Final

from gpuyard.input.quantities import gpu_mebibytes_in, mebibytes_in

MOST_COPIES: Final = 10_000
_TIME: Final = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?|(?P<a>\d+)(?::(?P<b>\d+)(?::(?P<c>\d+))?)?)"
)
_UNITS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])[a-z]*", re.IGNORECASE)
_INDICES: Final = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_MODELS: Final = re.compile(
    r"(?:nvidia[_-]?)?(?:geforce[_-]?|tesla[_-]?|quadro[_-]?)?"
    r"(?:a(?:2|10|16|30|40|100|800)|l(?:4|20|40s?)|h(?:20|100|200|800)|gh200|b[123]00|gb[23]00|v100s?|p(?:4|40|100)|t4|k(?:20|40|80)"
    r"|m(?:40|60)|mi\d{2,3}x?|titan[_-]?\w*|(?:rtx|gtx)[_-]?\w+|rtx|a(?:4000|4500|5000|5500|6000)|[1-5]0[5-9]0(?:ti|super)?)"
    r"(?:[_-](?:pcie|sxm\d?|nvl|\d{2,3}gi?b?))*",
    re.IGNORECASE,
)
_MEMORY: Final = re.compile(r"(?:v?ram|gmem|gpu[_-]?mem|gpu|mem)[_-]?(\d{1,3})(?:gi?b?)?|(\d{1,3})gi?b?", re.IGNORECASE)


def seconds_of_time(text: str) -> float | None:
    """Return a time limit in seconds, rounded up to a minute as Slurm does; None: no limit."""
    given = text.strip()
    if given.upper() in {"UNLIMITED", "INFINITE", "-1"}:
        return None
    found = _TIME.fullmatch(given)
    if found is None:
        if unit := _UNITS.fullmatch(given):
            minutes = float(unit[1]) * {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0}[unit[2].lower()]
            raise ValueError(
                f"Slurm has no units here; write {-(-minutes // 1):g} (minutes), or use gpuyard's --timeout {given}"
            )
        raise ValueError(
            "it must be MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS or DAYS-HOURS:MINUTES[:SECONDS]"
        )
    part = {name: int(value) if value else 0 for name, value in found.groupdict().items()}
    if found["days"] is not None:
        seconds = part["days"] * 86400 + part["dh"] * 3600 + part["dm"] * 60 + part["ds"]
    elif found["c"] is not None:
        seconds = part["a"] * 3600 + part["b"] * 60 + part["c"]
    else:
        seconds = part["a"] * 60 + part["b"]
    if seconds > 1_000_000_000:
        raise ValueError("it is longer than 1,000,000,000 seconds")
    return float(-(-seconds // 60) * 60) or None


def memory_of(text: str) -> int:
    """Return a size in MiB; 8GB is 8G."""
    return mebibytes_in(text)


def count_of(text: str) -> int:
    """Return a whole number above zero."""
    if not re.fullmatch(r"[0-9]{1,6}", text.strip()) or not int(text):
        more = f"; write {text[1:]} without =" if text.startswith("=") else ""
        raise ValueError(f"it must be a whole number above zero{more}")
    return int(text)


def nodes_of(text: str) -> int:
    """Return the number of nodes: of a range the smallest."""
    return count_of(text.partition("-")[0])


@dataclass(frozen=True, slots=True)
class AskedGpus:
    """GPUs of one option."""

    count: int
    model: str | None


def gpus_of_gres(text: str) -> tuple[AskedGpus | None, list[str]]:
    """Return the GPUs of `--gres`, and its other resources, which gpuyard does not know."""
    found: list[AskedGpus] = []
    others: list[str] = []
    for item in filter(None, (part.strip() for part in re.sub(r"\([^)]*\)", "", text).split(","))):
        words = re.sub(r"^gres[:/]", "", item, flags=re.IGNORECASE).replace("=", ":").split(":")
        if words[0].lower() != "gpu":
            others.append(item)
        elif words[1:2] == ["0"] or (len(words) > 2 and words[2] == "0"):
            found.append(AskedGpus(0, None))
        else:
            found.append(_gpus(words[1:]))
    if len(found) > 1:
        raise ValueError("it requests two kinds of GPUs; a task has GPUs of one model")
    return (found[0] if found else None), others


def gpus_of(text: str) -> AskedGpus:
    """Return the GPUs of `--gpus` and its like: `[type:]number`."""
    if "," in text:
        raise ValueError("it requests two kinds of GPUs; a task has GPUs of one model")
    if text.strip() == "0":
        return AskedGpus(0, None)
    return _gpus(text.split(":"))


def _gpus(words: list[str]) -> AskedGpus:
    if not words:
        return AskedGpus(1, None)
    if len(words) == 1:
        return AskedGpus(int(words[0]), None) if words[0].isdigit() else AskedGpus(1, _model(words[0]))
    if len(words) > 2:
        raise ValueError("it must have the form gpu, gpu:2 or gpu:a100:2")
    return AskedGpus(count_of(words[1]), _model(words[0]))


def _model(text: str) -> str:
    if not text:
        raise ValueError("it has no GPU model")
    return text


@dataclass(frozen=True, slots=True)
class ArrayIndices:
    """The indices of an array, in order, as ranges: first, step, number."""

    segments: tuple[tuple[int, int, int], ...]
    limit: int | None

    @property
    def count(self) -> int:
        """The number of tasks."""
        return sum(count for _, _, count in self.segments)

    @property
    def least(self) -> int:
        """The smallest index."""
        return min(first for first, _, _ in self.segments)

    @property
    def most(self) -> int:
        """The largest index."""
        return max(first + step * (count - 1) for first, step, count in self.segments)

    @property
    def step(self) -> int:
        """The step between the indices, as Slurm reports it: 1 unless the array is one range."""
        return self.segments[0][1] if len(self.segments) == 1 else 1


def array_of(text: str) -> ArrayIndices:
    """Parse `1-5:2,9%2`."""
    wrong = ValueError("it must be indices, such as 0-9, 1-9:2, 1,3,7 or 0-99%4")
    indices, percent, limit = text.strip().partition("%")
    if percent and not (limit.isdigit() and int(limit)):
        raise wrong
    segments: list[tuple[int, int, int]] = []
    total = 0
    for part in indices.strip("[]").split(","):
        found = _INDICES.fullmatch(part.strip())
        if found is None or len(found[0]) > 40:
            raise wrong
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or not step:
            raise wrong
        segments.append((first, step, (last - first) // step + 1))
        total += segments[-1][2]
        if total > MOST_COPIES:
            raise ValueError(f"it has more than {MOST_COPIES:,} indices, the maximum of an array")
    numbers = [first + step * number for first, step, count in segments for number in range(count)]
    if len(set(numbers)) < len(numbers):
        raise ValueError("it has an index twice")
    return ArrayIndices(tuple(segments), int(limit) if percent else None)


def dependencies_of(text: str) -> tuple[list[str], list[str]]:
    """Return the tasks that must succeed, and those that must end, of `afterok:1:2,afterany:3`."""
    if "?" in text:
        raise ValueError("? (any one of them) is not supported; gpuyard waits for all")
    success: list[str] = []
    end: list[str] = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        kind, *ids = part.split(":")
        if kind not in {"afterok", "afterany"}:
            known = {
                "after": "starts",
                "afternotok": "fails",
                "aftercorr": "succeeds with the same index",
                "singleton": "has another name",
            }
            until = f" (waits until a job {known[kind]})" if kind in known else ""
            raise ValueError(f"{kind}{until} is not supported; use afterok or afterany")
        if not ids:
            raise ValueError(f"{kind} names no task")
        for one in ids:
            number = one.strip().removeprefix("task-")
            if "_" in number:
                raise ValueError(f"{one}: name an element of an array by its own id, as `gpuyard ps` shows it")
            if not re.fullmatch(r"[1-9][0-9]{0,18}", number):
                raise ValueError(f"{one[:40]!r} is not the id of a task, such as 7 or task-7")
            (success if kind == "afterok" else end).append(number)
    return success, end


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a `--constraint` means here."""

    models: tuple[str, ...] = ()
    gpu_memory_mib: int = 0
    unknown: tuple[str, ...] = ()


def constraint_of(text: str) -> Constraint:
    """Return GPU models (`a100|h100`) and GPU memory (`vram40`, `gpu80g`) of a constraint; the rest is unknown."""
    models: tuple[str, ...] = ()
    memory, unknown = 0, []
    for factor in filter(None, (part.strip() for part in re.split(r"[&,]", text))):
        choices = [part.strip() for part in factor.strip("()[]").split("|") if part.strip()]
        sized = _MEMORY.fullmatch(choices[0]) if len(choices) == 1 else None
        if choices and all(_MODELS.fullmatch(choice) for choice in choices) and not models:
            models = tuple(choices)
        elif sized:
            memory = max(memory, gpu_mebibytes_in(f"{sized[1] or sized[2]}G"))
        else:
            unknown.append(factor)
    return Constraint(models, memory, tuple(unknown))


@dataclass(frozen=True, slots=True)
class SignalBeforeLimit:
    """A signal before the time limit."""

    name: str
    seconds: int
    only_script: bool


def signal_of(text: str) -> SignalBeforeLimit:
    """Parse `[R][{B|R}:]SIGNAL[@SECONDS]`."""
    found = re.fullmatch(r"(?:([BR]{1,2}):)?(?:SIG)?([A-Z0-9]+)(?:@(\d{1,6}))?", text.strip().upper())
    if found is None:
        raise ValueError("it must have the form [B:]SIGNAL[@SECONDS], such as B:USR1@120")
    import signal

    name = found[2]
    if name.isdigit():
        try:
            name = signal.Signals(int(name)).name.removeprefix("SIG")
        except ValueError:
            raise ValueError(f"{name} is not a signal") from None
    elif f"SIG{name}" not in signal.Signals.__members__:
        raise ValueError(f"{name} is not a signal")
    return SignalBeforeLimit(name, int(found[3] or 60), "B" in (found[1] or ""))
