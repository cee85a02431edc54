"""The options of sbatch: names, short names, which take a value; read as getopt_long does, with unambiguous prefixes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuyard.core.domain.errors import WrongInput

_WITH_VALUE: Final = (
    "account=A acctg-freq array=a batch bb bbf begin=b chdir=D cluster-constraint clusters=M comment constraint=C container "
    "container-id core-spec=S cores-per-socket cpu-freq cpus-per-gpu cpus-per-task=c deadline delay-boot dependency=d "
    "distribution=m error=e exclude=x export export-file extra extra-node-info=B gid gpu-bind gpu-freq gpus=G gpus-per-node "
    "gpus-per-socket gpus-per-task gres gres-flags hint input=i job-name=J kill-on-invalid-dep licenses=L mail-type mail-user "
    "mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile=F nodelist=w nodes=N ntasks=n ntasks-per-core "
    "ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output=o partition=p power prefer priority profile qos=q "
    "reservation segment signal sockets-per-node switches thread-spec threads-per-core time=t time-min tmp tres-bind "
    "tres-per-task uid wait-all-nodes wckey wrap "
    "container-image container-mounts container-workdir container-name container-save container-env"
)
_WITHOUT: Final = (
    "contiguous hold=H ignore-pbs no-requeue overcommit=O parsable quiet=Q reboot requeue spread-job stepmgr test-only "
    "use-min-nodes verbose=v wait=W container-mount-home no-container-mount-home container-writable container-readonly "
    "container-remap-root no-container-remap-root container-entrypoint no-container-entrypoint"
)
_WITH_OPTIONAL: Final = "exclusive get-user-env nice no-kill=k oversubscribe=s propagate"


def _names(text: str) -> dict[str, str]:
    """Return long names with their short ones; empty if there is none."""
    found = {}
    for word in text.split():
        name, _, short = word.partition("=")
        found[name] = short
    return found


NEEDS: Final = {
    **dict.fromkeys(_names(_WITH_VALUE), "value"),
    **dict.fromkeys(_names(_WITHOUT), ""),
    **dict.fromkeys(_names(_WITH_OPTIONAL), "optional"),
}
SHORT: Final = {
    short: name for text in (_WITH_VALUE, _WITHOUT, _WITH_OPTIONAL) for name, short in _names(text).items() if short
}
OF_VARIABLE: Final = {"SBATCH_ARRAY_INX": "array", "SBATCH_TIMELIMIT": "time", "SBATCH_MEM_PER_NODE": "mem"} | {
    f"SBATCH_{name.replace('-', '_').upper()}": name
    for name in [
        "account",
        "begin",
        "clusters",
        "comment",
        "constraint",
        "cpus-per-gpu",
        "error",
        "exclusive",
        "export",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "input",
        "job-name",
        "mem-per-cpu",
        "mem-per-gpu",
        "no-requeue",
        "open-mode",
        "output",
        "partition",
        "qos",
        "requeue",
        "reservation",
        "signal",
        "wckey",
    ]
}
"""Variables that override a script."""


class WrongDirective(WrongInput):
    """An option of sbatch cannot be understood."""


@dataclass(slots=True)
class SbatchOptions:
    """Options of a job; the last one wins."""

    values: dict[str, str] = field(default_factory=dict)
    """The value of each option that is set; a flag has an empty one."""
    origins: dict[str, str] = field(default_factory=dict)
    """Where it was set: `job.sh, line 3`, a variable, or empty for the command line."""

    def get(self, name: str) -> str | None:
        """Return the value of an option, or None."""
        return self.values.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def add(self, words: Sequence[str], origin: str) -> list[str]:
        """Read options; return the words from the first one on that is not an option."""
        left = list(words)
        while left and left[0].startswith("-") and left[0] != "-":
            word = left.pop(0)
            if word == "--":
                break
            pairs = _long(word, left, origin) if word.startswith("--") else _shorts(word, left, origin)
            for name, value in pairs:
                self.set(name, value, origin)
        return left

    def add_variables(self, variables: Mapping[str, str]) -> None:
        """Read `SBATCH_` variables."""
        for variable, name in OF_VARIABLE.items():
            if variable in variables:
                self.set(name, variables[variable] if NEEDS[name] else "", variable)

    def set(self, name: str, value: str, origin: str) -> None:
        """Set an option that is known."""
        for other in _INSTEAD_OF.get(name, ()):
            self.values.pop(other, None)
        self.values[name], self.origins[name] = value, origin

    def place(self, name: str) -> str:
        """Return where an option was set, to begin a sentence with."""
        origin = self.origins.get(name, "")
        return f"{origin}: " if origin else ""


_INSTEAD_OF: Final = {"requeue": ("no-requeue",), "no-requeue": ("requeue",)}


def _long(word: str, left: list[str], origin: str) -> Iterator[tuple[str, str]]:
    typed, equals, value = word[2:].partition("=")
    name = _full_name(typed, origin)
    if NEEDS[name] == "value" and not equals:
        if not left:
            raise WrongDirective(f"{_begin(origin)}--{name} needs a value.")
        value = left.pop(0)
    elif not NEEDS[name] and equals:
        raise WrongDirective(f"{_begin(origin)}--{name} takes no value.")
    yield name, value


def _full_name(typed: str, origin: str) -> str:
    if typed in NEEDS:
        return typed
    matching = sorted(name for name in NEEDS if typed and name.startswith(typed))
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(f"--{name}" for name in matching[:6])
        raise WrongDirective(f"{_begin(origin)}--{typed} is ambiguous: {names}.")
    from gpuyard.input.nearest_name import closest_word

    near = closest_word(typed, NEEDS)
    hint = f"did you mean --{near}?" if near else "it is not an option of sbatch."
    raise WrongDirective(f"{_begin(origin)}Unknown option --{typed[:60]}; {hint}")


def _shorts(word: str, left: list[str], origin: str) -> Iterator[tuple[str, str]]:
    rest = word[1:]
    while rest:
        letter, rest = rest[0], rest[1:]
        name = SHORT.get(letter)
        if name is None:
            raise WrongDirective(f"{_begin(origin)}Unknown option -{letter}; it is not an option of sbatch.")
        if NEEDS[name] == "value":
            if not rest and not left:
                raise WrongDirective(f"{_begin(origin)}-{letter} needs a value.")
            yield name, rest or left.pop(0)
            return
        if NEEDS[name] == "optional":
            yield name, rest
            return
        yield name, ""


def _begin(origin: str) -> str:
    return f"{origin}: " if origin else ""
