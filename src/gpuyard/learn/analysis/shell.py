"""Command lines: what a shell script or a recipe starts, one command after the other, and what each tells by itself.

Only what is plainly written counts. Variables that the script sets are put in, others become *. Conditions and loops are passed
through: their commands are there, with the loop they are in.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

QUIET = frozenset({
    "echo", "printf", "cd", "set", "unset", "export", "source", ".", "sleep", "wait", "true", "false", ":", "exit",
    "test", "[", "[[", "date", "pwd", "mkdir", "rm", "rmdir", "touch", "chmod", "ls", "cat", "module", "conda", "pip",
    "pip3", "ulimit", "shopt", "local", "readonly", "declare", "trap", "return", "shift", "read", "eval", "hostname",
    "nvidia-smi", "which", "command", "alias", "pushd", "popd", "deactivate", "umask", "kill", "ln", "git", "apt",
    "apt-get", "sudo", "nvcc",
})  # fmt: skip
"""Commands that are no tasks."""
HARMLESS = frozenset({
    "echo", "printf", "set", "sleep", "wait", "true", ":", "date", "pwd", "ls", "hostname", "nvidia-smi", "which", "shopt",
})  # fmt: skip
"""Those of them that others can do without."""
READY = frozenset({"export", "mkdir", "ulimit", "umask"})
"""Those that make ready for others: quick, and they can be done before each."""
WORDS = frozenset({
    "if", "then", "else", "elif", "fi", "do", "done", "while", "until", "case", "esac", "in", "{", "}", "!", "(", ")",
    "function",
})  # fmt: skip
PLAIN = re.compile(r"[\w@%+=:,./*?~\[\]{}-]+")
"""Words that mean the same without quotation marks, or lost none when they were read."""
BEFORE = {
    "time": 0,
    "nohup": 0,
    "exec": 0,
    "nice": 2,
    "env": 0,
    "stdbuf": 1,
    "srun": 0,
    "mpirun": 0,
    "mpiexec": 0,
    "taskset": 2,
}
"""Words before a command that only say how it runs, and how many words of theirs follow if those begin with a dash."""
WRITTEN_OUT = 32
"""Rounds of a loop that become tasks of their own."""
LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch", "horovodrun"}
PROCESSES = (
    "--nproc_per_node",
    "--nproc-per-node",
    "--num_processes",
    "--num-processes",
    "--num_gpus",
    "--num-gpus",
    "-np",
)
NODES = ("--nnodes", "--num_machines", "--num_nodes", "--num-nodes")


@dataclass(frozen=True)
class Command:
    """One command as it would be started."""

    words: tuple[str, ...]
    line: int
    text: str
    env: dict[str, str] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    """By < and >."""
    repeats: str | None = None
    rounds: int | None = None
    apart: bool = False
    """With & behind it: the next does not wait for it."""
    before: tuple[str, ...] = ()
    """What has to be done first wherever it runs."""

    @property
    def whole_line(self) -> str:
        """As it would be typed, to be run alone."""
        env = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " && ".join([*self.before, " ".join([*env, self.text])])


@dataclass(frozen=True)
class Started:
    """What a command starts, without what is around it."""

    program: str
    arguments: tuple[str, ...]
    is_python: bool = False
    is_module: bool = False
    gpus: int | None = None
    """One process each, where the launcher says how many."""
    nodes: int = 1


def commands(script: str, given: dict[str, str] | None = None) -> Iterator[Command]:
    """Every command of a script that is a task."""
    variables = dict(given or {})
    loops: list[Loop] = []
    ready: dict[str, None] = {}
    for number, line in _logical_lines(script):
        for words, ending in _split(line):
            for made in _command(words, number, variables, loops, ending == "&"):
                if made.words[0] in READY:
                    ready[made.text] = None
                    if made.words[0] == "export":
                        variables |= {
                            name: value for name, _, value in (word.partition("=") for word in made.words[1:])
                        }
                else:
                    yield replace(made, before=tuple(ready))


def stand_alone(script: str) -> bool:
    """Whether the commands of a script do the same one by one as together: no pipes, conditions or functions, no going elsewhere."""
    for _, line in _logical_lines(script):
        if "<<" in line or re.match(r"\s*(function\s|\w+\s*\(\))", line):
            return False
        for words, ending in _split(line):
            first = next((word for word in words if word not in {"do", "done"}), "")
            if ending in {"|", "||", "|&"} or first in WORDS:
                return False
            if first in QUIET and first not in HARMLESS | READY:
                return False
            if first == "mkdir" and "-p" not in words:
                return False
    return True


def _logical_lines(script: str) -> Iterator[tuple[int, str]]:
    """Lines with what follows a backslash; what a here-document holds is no command."""
    kept, first, until = "", 0, ""
    for number, line in enumerate(script.splitlines(), 1):
        if until:
            until = "" if line.strip() == until else until
            continue
        first = first or number
        if line.rstrip().endswith("\\"):
            kept += line.rstrip()[:-1] + " "
            continue
        whole = kept + line
        yield first, whole
        kept, first = "", 0
        here = re.search(r"<<-?\s*['\"]?(\w+)['\"]?", whole)
        until = here[1] if here else ""
    if kept:
        yield first, kept


def _split(line: str) -> Iterator[tuple[list[str], str]]:
    """At ; && || | and &; which of them followed."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    reader.whitespace_split = True
    reader.commenters = "#"
    words: list[str] = []
    try:
        for word in reader:
            if word and set(word) <= set(";&|"):
                yield words, word
                words = []
            else:
                words.append(word)
    except ValueError:  # a quotation that goes on in another line
        words = line.split()
    yield words, ""


def _command(
    words: list[str], number: int, variables: dict[str, str], loops: "list[Loop]", apart: bool
) -> Iterator[Command]:
    while words and words[0] in WORDS | {"for"}:
        if words[0] == "for":
            loops.append(_for(words, variables))
            return
        if words[0] in {"while", "until"}:
            loops.append(Loop(" ".join(words)))
        elif words[0] == "done" and loops:
            loops.pop()
        words = words[1:]
    counted = [loop for loop in loops if loop.items]
    endless = [loop for loop in loops if not loop.items]
    for round_ in product(*(loop.items for loop in counted)):
        here = variables | {loop.variable: item for loop, item in zip(counted, round_, strict=True)}
        here |= {loop.variable: "*" for loop in endless if loop.variable}
        made = _one(words, number, here, apart)
        if isinstance(made, dict):
            variables |= made
        elif made is not None:
            last = endless[-1] if endless else None
            yield replace(made, repeats=last.text if last else None, rounds=last.rounds if last else None)


@dataclass(frozen=True)
class Loop:
    """Of the shell. One over a short list is written out."""

    text: str
    variable: str = ""
    items: tuple[str, ...] = ()
    rounds: int | None = None


def _for(words: list[str], variables: dict[str, str]) -> Loop:
    text, name = " ".join(words), words[1] if len(words) > 1 else ""
    listed = words[3:] if len(words) > 2 and words[2] == "in" else []
    items = [item for word in _counted(" ".join(listed)).split() for item in expanded(word, variables).split()]
    if not items or any(re.search(r"[*?$`{]", item) for item in items):
        return Loop(text, name)
    return Loop(text, name, tuple(items)) if len(items) <= WRITTEN_OUT else Loop(text, name, rounds=len(items))


def _counted(text: str) -> str:
    """{1..3} and $(seq 1 3) as numbers."""

    def numbers(found: re.Match[str]) -> str:
        first, last = (int(part) for part in found.groups(default="1"))
        return " ".join(map(str, range(first, min(last, first + 10 * WRITTEN_OUT) + 1)))

    text = re.sub(r"\{(\d+)\.\.(\d+)\}", numbers, text)
    return re.sub(r"(?:\$\(|`)seq\s+(?:(\d+)\s+)?(\d+)(?:\)|`)", numbers, text)


def _one(words: list[str], number: int, variables: dict[str, str], apart: bool) -> "Command | dict[str, str] | None":
    """A command, variables that are set, or nothing."""
    env: dict[str, str] = {}
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, value = words[0].partition("=")
        env[name] = expanded(value, variables)
        words = words[1:]
    if not words:
        return env
    plain: list[str] = []
    reads: set[str] = set()
    writes: set[str] = set()
    redirected: list[str] = []
    following = iter(words)
    for word in following:
        if word in {"<", ">", ">>", ">&", "&>", "2>", "<<", "<<<"}:
            name = expanded(next(following, ""), variables)
            if re.search(r"[A-Za-z]", name) and name != "/dev/null":
                (reads if word == "<" else writes).add(name)
            stream = plain.pop() if plain and plain[-1] in {"1", "2"} else ""
            redirected.append(f"{stream}{word}{shlex.quote(name)}")
        else:
            plain.append(expanded(word, variables))
    if not plain or plain[0] in QUIET - READY or not re.match(r"[\w./~$*\"-]", plain[0]):
        return None
    text = " ".join([*(word if PLAIN.fullmatch(word) else shlex.quote(word) for word in plain), *redirected])
    return Command(tuple(plain), number, text, env, frozenset(reads), frozenset(writes), apart=apart)


def expanded(word: str, variables: dict[str, str]) -> str:
    """With variables put in; * for those nobody set, and for what other commands would say."""
    word = re.sub(r"\$\([^)]*\)|`[^`]*`", "*", word)

    def value(found: re.Match[str]) -> str:
        name, default = found[1] or found[3], found[2]
        return variables.get(name, default.lstrip(":-=") if default else "*")

    return re.sub(r"\$\{(\w+)(:?[-=][^}]*)?[^}]*\}|\$(\w+|[@*#?])", value, word)


def started(command: Command) -> Started:
    """What is really run: without `time`, `nohup`, launchers and their options."""
    words = list(command.words)
    gpus, nodes = _visible(command.env), 1
    while words:
        name = words[0].rsplit("/", 1)[-1]
        if name in BEFORE:
            words = _past_options(words[1:], BEFORE[name])
            while words and re.match(r"[A-Za-z_]\w*=", words[0]):
                words = words[1:]
            continue
        if name == "gpuyard" and "--" in words:
            words = words[words.index("--") + 1 :]
            continue
        break
    if not words:
        return Started("", ())
    name = words[0].rsplit("/", 1)[-1]
    if re.fullmatch(r"python[\d.]*|pypy\d*|ipython", name):
        return _python(words[1:], gpus)
    if name in LAUNCHERS:
        return _launched(words[1:], gpus)
    if name.endswith(".py"):
        return Started(words[0], tuple(words[1:]), is_python=True, gpus=gpus, nodes=nodes)
    if name in {"bash", "sh", "zsh", "dash"}:
        rest = [word for word in words[1:] if not word.startswith("-")]
        return Started(rest[0] if rest else name, tuple(rest[1:]), gpus=gpus)
    return Started(words[0], tuple(words[1:]), gpus=gpus)


def _visible(env: dict[str, str]) -> int | None:
    devices = env.get("CUDA_VISIBLE_DEVICES")
    return len([one for one in devices.split(",") if one.strip()]) if devices and "*" not in devices else None


def _past_options(words: list[str], values: int) -> list[str]:
    while words and words[0].startswith("-"):
        takes_one = values > 1 or (re.fullmatch(r"-[nNcp]|-np", words[0]) is not None)
        words = words[2 if takes_one else 1 :]
    return words


def _python(words: list[str], gpus: int | None) -> Started:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-m" and rest:
            if rest[0] in LAUNCHERS:
                return _launched(rest[1:], gpus)
            return Started(rest[0], tuple(rest[1:]), is_python=True, is_module=True, gpus=gpus)
        if option == "-c":
            return Started("python", tuple(words), gpus=gpus)
        if option in {"-W", "-X"} and rest:
            rest.pop(0)
    return Started(rest[0] if rest else "python", tuple(rest[1:]), is_python=bool(rest), gpus=gpus)


def _launched(words: Sequence[str], gpus: int | None) -> Started:
    """After torchrun and the like: their options, then a script and its own."""
    nodes = 1
    rest = [word for word in words if word != "launch"] if words[:1] == ["launch"] else list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            if word in {"python", "python3"}:
                continue
            return Started(word, tuple(rest), is_python=word.endswith(".py"), gpus=gpus or 1, nodes=nodes)
        if not equals and rest and not rest[0].startswith("-") and not rest[0].endswith(".py"):
            value = rest.pop(0)
        if name in PROCESSES and value.isdigit():
            gpus = int(value)
        if name in NODES and value.isdigit():
            nodes = int(value)
        if name == "-m" and value:
            return Started(value, tuple(rest), is_python=True, is_module=True, gpus=gpus or 1, nodes=nodes)
    return Started("", (), gpus=gpus)
