"""The kind name of a task: what the tasks of a sweep have in common, whether or not they share a name.

    name     train-lr0.1-seed3                            train-lr#-seed
    name     resnet                                       resnet
    command  python train.py --lr 0.1 --seed 3            python train.py
    command  CUDA_VISIBLE_DEVICES=0 python -m pkg.mod -x  python -m pkg.mod
    command  torchrun --nproc_per_node 2 train.py --lr 1  torchrun train.py
    command  bash -c "cd src && ./run_17.sh"              run_#.sh

A name loses its numbers, hashes and assigned values. A task without a name, or with one of which nothing is left, has the kind
of its command: the program with its script, module or subcommand, and neither options nor environment variables. A lease without
a name, and a command that only prepares something (`cd`, `true`), have none. In a command line, commands that copy files or report
something count only if there is no other.

The kind name is derived from a specification wherever it is needed, so it is in no event. It is compared and never shown.
It is a guess: different work may have one kind name. How much the run times of a kind vary is learned from those that have
ended (`TaskSpec.kind_varies`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

LONGEST_NAME = 200
"""Characters of a name, or of one word of a command, that count."""
LONGEST_COMMAND = 1000
"""Characters, or words, of a command that are searched for its program."""
DEEPEST = 3
"""How many shells may be nested, as in `bash -c "sh -c ..."`."""

_VARIES = re.compile(
    r"=[^\s,;:)\]}&|]*"  # an assigned value
    r"|(?<![^\W_])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![^\W_])"  # a UUID
    r"|(?<![^\W_])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{7,}(?![^\W_])"  # a hash
    r"|\d+(?:[.,]\d+)*(?:[eE][+-]?\d+)?"  # a number
)
_SEVERAL = re.compile(r"#(?:[\s_.:/+x-]*#)+")
_ENDS = " \t\r\n-_.:,;/=+@~#()[]{}"

_TOKEN = re.compile(
    r"(?P<comment>(?<!\S)#[^\n]*)|(?P<ends>&&|\|\||[;|&\n(){}])|(?P<word>(?:\\.|'[^']*'?|\"(?:\\.|[^\"\\])*\"?|[^\s;|&(){}'\"\\])+)",
    re.DOTALL,
)
"""A word of a shell command line, quoted or not, or what ends one of its commands, as a comment does. Unbalanced quotes end with the line."""
_QUOTED = re.compile(r"'([^']*)'?|\"((?:\\.|[^\"\\])*)\"?|\\(.)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SUBCOMMAND = re.compile(r"[A-Za-z][A-Za-z_-]{0,30}")
SCRIPTS = frozenset(("py", "sh", "bash", "R", "r", "jl", "pl", "rb", "js", "ts", "lua", "ipynb", "m"))
"""Endings of the names of scripts."""

PREPARES = frozenset(
    (
        "", ":", ".", "[", "[[", "test", "cd", "pushd", "popd", "source", "activate", "export", "unset", "set", "shopt",
        "ulimit", "umask", "module", "pip", "mkdir", "echo", "printf", "trap", "wait", "true", "false", "exit", "for", "done",
        "fi", "esac",
    )
)  # fmt: skip
"""Commands and words of the shell that say nothing about the work of a command line."""
HELPERS = frozenset(
    (
        "apt", "apt-get", "aws", "awk", "cat", "chmod", "chown", "cp", "curl", "date", "df", "du", "eval", "find", "free", "git",
        "grep", "gsutil", "gunzip", "head", "hostname", "hostnamectl", "huggingface-cli", "id", "ln", "ls", "lscpu", "mv", "nproc",
        "nvidia-smi", "pwd", "rclone", "read", "rm", "rocm-smi", "rsync", "s5cmd", "scp", "sed", "sleep", "tail", "tar", "touch",
        "uname", "unzip", "wget", "which", "whoami", "yes",
    )
)  # fmt: skip
"""Commands that copy files or report something, and are rarely the work of a command line."""
BEFORE = frozenset(
    ("if", "then", "else", "elif", "while", "until", "do", "!", "time", "exec", "command", "nohup", "setsid")
)
"""Words before a program that take no options of their own."""
WRAPPERS = {
    "env": frozenset(("-u", "--unset", "-C", "--chdir")),
    "nice": frozenset(("-n",)),
    "ionice": frozenset(("-c", "-n")),
    "timeout": frozenset(("-s", "-k")),
    "sudo": frozenset(("-u", "-g")),
    "stdbuf": frozenset(("-i", "-o", "-e")),
    "numactl": frozenset(("-C", "-N", "-m")),
    "taskset": frozenset(("-c",)),
    "srun": frozenset(("-n", "-N", "-p", "-c")),
    "conda": frozenset(("-n", "-p", "--name", "--prefix")),
    "mamba": frozenset(("-n", "-p", "--name", "--prefix")),
    "poetry": frozenset[str](),
    "uv": frozenset(("--with", "-p", "--python")),
}
"""Programs that run another one, and which of their options are followed by a value."""
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "fish"))
INTERPRETERS = frozenset(
    ("python", "pypy", "ipython", "Rscript", "julia", "node", "perl", "ruby", "lua", "deno", "bun")
)
CONTAINERS = frozenset(("apptainer", "singularity"))
IMAGES = (".sif", ".simg")
"""Endings of the names of images; the other images are addresses (`docker://...`)."""
LAUNCHERS = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner")
)
"""Modules that run another script or module."""
WITH_VALUE = frozenset(("-W", "-X", "-I", "-r"))
"""Options of interpreters that are followed by a value."""


def kind_name(name: str, command: Sequence[str] | str | None) -> str:
    """Return the kind name of a task; empty if it has none."""
    kind = without_values(name) if name else ""
    if kind not in ("", "#"):
        return kind
    return _of_command(command) or kind


def _of_command(command: Sequence[str] | str | None) -> str:
    if command is None:
        return ""
    if isinstance(command, str):
        return _of_line(command[:LONGEST_COMMAND], 0)
    return _of_words(iter(command[:LONGEST_COMMAND]), 0)


def without_values(text: str) -> str:
    """Return a name without what varies in a sweep: numbers, hashes and assigned values, and separators at its end."""
    text = _SEVERAL.sub("#", _VARIES.sub(_hidden, text[:LONGEST_NAME]))
    return text.rstrip(_ENDS) or "#"


def _hidden(found: "re.Match[str]") -> str:
    return "=#" if found[0].startswith("=") else "#"


@lru_cache(maxsize=1024)  # the tasks of an array have one command, and each is asked for several times
def _of_line(line: str, depth: int) -> str:
    """Return the kind of a shell command line: that of its first command that does not only prepare or help."""
    helper = ""
    for words in _commands(line):
        kind = _of_words(iter(words), depth)
        if kind and kind.partition(" ")[0] not in HELPERS:
            return kind
        helper = helper or kind
    return helper


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell command line."""
    words: list[str] = []
    for token in _TOKEN.finditer(line):
        if token.lastgroup == "word":
            words.append(_QUOTED.sub(_unquoted, token[0]))
        elif words:
            yield words
            words = []
    if words:
        yield words


def _unquoted(found: "re.Match[str]") -> str:
    single, double, escaped = found.groups()
    return _ESCAPED.sub(r"\1", double) if double else single or escaped or ""


def _of_words(words: Iterator[str], depth: int) -> str:
    """Return the kind of one command: its program, and what it runs."""
    program = _program(words)
    if program in PREPARES:
        return ""
    if program in SHELLS:
        return _of_shell(program, words, depth)
    called = without_values(program)
    if called in CONTAINERS:
        return _of_container(called, words, depth)
    runs = _script(words) if called in INTERPRETERS else _script_or_subcommand(words)
    return f"{called} {runs}" if runs else called


def _program(words: Iterator[str]) -> str:
    """Return the name of the program, without its folder, and without variables and programs that only start it."""
    with_value: frozenset[str] | None = None
    for word in words:
        if _ASSIGNMENT.match(word) or word in BEFORE:
            continue
        if with_value is not None and (word[:1] == "-" or word[:1].isdigit() or word == "run"):
            if word in with_value:
                next(words, None)
            continue
        program = word.rpartition("/")[2][:LONGEST_NAME]
        with_value = WRAPPERS.get(program)
        if with_value is None:
            return program
    return ""


def _of_shell(shell: str, words: Iterator[str], depth: int) -> str:
    for word in words:
        if word[:1] not in ("-", "+"):
            return f"{shell} {without_values(word)}"
        if not word.startswith("--") and word.endswith("c"):
            return _of_line(next(words, "")[:LONGEST_COMMAND], depth + 1) if depth < DEEPEST else shell
    return shell


def _of_container(called: str, words: Iterator[str], depth: int) -> str:
    """Return the kind of what is executed in an image, or of an image that is run."""
    executes = False
    for word in words:
        executes = executes or word == "exec"
        if word.endswith(IMAGES) or "://" in word:
            inside = _of_words(words, depth + 1) if executes and depth < DEEPEST else ""
            return inside or f"{called} {without_values(word)}"
    return called


def _script(words: Iterator[str]) -> str:
    """Return what an interpreter runs: a script or a module. Code in an argument is not looked at."""
    for word in words:
        if word == "-m":
            module = next(words, "")
            runs = _script_or_subcommand(words) if module in LAUNCHERS else ""
            return f"-m {without_values(module)} {runs}".rstrip()
        if word in ("-c", "-e"):
            return word
        if word in WITH_VALUE:
            next(words, None)
        elif word[:1] != "-":
            return without_values(word)
    return ""


def _script_or_subcommand(words: Iterable[str]) -> str:
    """Return what another program runs: the first script or module among its arguments, otherwise its subcommand."""
    subcommand, is_first, is_module = "", True, False
    for word in words:
        if is_module or _is_script(word):
            return f"-m {without_values(word)}" if is_module else without_values(word)
        if is_first and _SUBCOMMAND.fullmatch(word):
            subcommand = word
        is_first, is_module = False, word in ("-m", "--module")
    return subcommand


def _is_script(word: str) -> bool:
    begin, dot, ending = word.rpartition(".")
    return bool(begin and dot) and ending in SCRIPTS
