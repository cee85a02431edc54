"""The tasks of a folder: its programs, which are processes of their own and meet only in files.

Tasks are the targets of Makefiles that have a recipe, the commands of shell scripts, and Python scripts that nobody else starts.
One needs another if it reads what that one writes, or if a Makefile says so. Commands that nothing is known of keep the order
they have in their script: whoever stands behind one waits for it, and it waits for all before it.
"""

import os
import posixpath
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.analysis import makefile, shell
from gpuyard.learn.analysis.graph import Evidence, Graph, Need, Task, graph_of
from gpuyard.learn.analysis.script import Script, circles, gpus_of, task_of, unique
from gpuyard.learn.analysis.signs import Sign
from gpuyard.learn.analysis.sources import Project, Unreadable, files_below, read_bytes
from gpuyard.learn.analysis.steps import shared_files
from gpuyard.learn.analysis.survey import Clue, Seen
from gpuyard.learn.analysis.texts import is_known

MAKEFILES = ("Makefile", "makefile", "GNUmakefile")
NO_PROGRAM = re.compile(r"^(test_.*|.*_test|conftest|setup|noxfile|tasks|__init__|conf)\.py$")
DEEPEST = 5
"""Scripts that start scripts."""
COPYING = {
    "cp": True,
    "mv": True,
    "rsync": True,
    "wget": False,
    "curl": False,
    "tar": False,
    "unzip": False,
    "gunzip": False,
}
"""Programs whose words say all, and whether the last one is what they write."""
MOVES_FILES = Sign("data", "io", 4, "moves files")
ENOUGH_FILES = 50
"""From so many on, `tell` hears how far it is."""


@dataclass
class Program:
    """A process of a folder."""

    name: str
    does: str
    file: str
    line: int
    command: tuple[str, ...] | str | None
    seen: Seen = field(default_factory=Seen)
    group: str = ""
    """The script it stands in, whose order counts."""
    is_known: bool = True
    gpus: int | None = None
    nodes: int = 1
    needs: dict[str, str] = field(default_factory=dict)
    repeats: str | None = None
    rounds: int | None = None
    apart: bool = False


class Programs:
    """Those of one folder."""

    def __init__(self, root: Path, tell: Callable[[str], None]) -> None:
        self.root = root
        self.project = Project(root)
        self.notes: list[str] = []
        self._tell = tell
        self._started: set[Path] = set()
        """Scripts that others start."""
        self._scripts: dict[tuple[Path, tuple[str, ...]], Script | None] = {}

    def graph_of_file(self, path: Path) -> Graph:
        """Of one shell script or Makefile."""
        found = self._of_makefile(path) if path.name in MAKEFILES else self._of_shell(path, 0)
        if not found:
            self.notes.append(f"{path.name} starts nothing.")
        return graph_of(path.name, "programs", self._tasks(found), self.notes)

    def graph(self, python: str) -> Graph:
        """Everything that runs, and what it needs."""
        names = files_below(self.root, lambda name: name.endswith((".py", ".sh")) or name in MAKEFILES, self._counted)
        if not names:
            raise Unreadable(f"{self.root}: there is no Python file, shell script or Makefile in it.")
        found: list[Program] = []
        for path in names:
            if path.name in MAKEFILES:
                found += self._of_makefile(path)
        for path in names:
            if path.suffix == ".sh":
                found += self._of_shell(path, 0)
        found = [program for program in found if program.group not in self._nested]
        found += self._of_python([path for path in names if path.suffix == ".py"], python)
        if not found:
            self.notes.append("Nothing in it does anything when it is run; name one file to see its functions.")
        return graph_of(str(self.root), "programs", self._tasks(found), self.notes)

    def _counted(self, count: int) -> None:
        if count >= ENOUGH_FILES:
            self._tell(f"{count} files")

    @property
    def _nested(self) -> set[str]:
        return {self._shown(path) for path in self._started}

    def _shown(self, path: Path) -> str:
        return os.path.relpath(path, self.root)

    # --- where programs come from -------------------------------------------------------------------------------------

    def _of_makefile(self, path: Path) -> list[Program]:
        folder = self._shown(path.parent)
        rules = makefile.targets(self._text(path))
        made = []
        needed = {name for target in rules.values() for name in target.needs}
        for target in rules.values():
            if not target.recipe:
                continue
            if target.only_removes and target.name not in needed:
                self._leave_out(WrongInput(f"{self._shown(path)}:{target.line}: {target.name} only removes things."))
                continue
            seen = Seen()
            gpus, nodes = None, 1
            for _, line in target.recipe:
                for command in shell.commands(line):
                    inner, started = self._seen(command, path.parent, 0)
                    seen.add(inner)
                    gpus, nodes = _more(gpus, started.gpus), max(nodes, started.nodes)
            own = [name for name in target.needs if name not in rules]
            seen.writes |= set() if target.is_phony else {target.name}
            seen.reads |= set(own)
            seen.reads, seen.writes = _in(folder, seen.reads), _in(folder, seen.writes)
            makes = _with_recipe(target.needs, rules)
            held = [word for name in target.needs if name in rules for word in ("-o", name)]
            where = [] if folder == "." else ["-C", folder]
            made.append(
                Program(
                    target.name, target.recipe[0][1], self._shown(path), target.line, ("make", *where, *held, target.name), seen,
                    group=f"{self._shown(path)}:{target.name}", gpus=gpus, nodes=nodes,
                    needs=dict.fromkeys(makes, "Makefile"),
                )
            )  # fmt: skip
        return made

    def _of_shell(self, path: Path, depth: int) -> list[Program]:
        shown = self._shown(path)
        made = []
        text = self._text(path)
        commands = list(shell.commands(text))
        home = self._home(path, commands)
        into = "" if home == "." else f"cd {shlex.quote(home)} && "
        alone = shell.stand_alone(text)
        for command in commands:
            seen, started = self._seen(command, path.parent, depth)
            seen.reads, seen.writes = _in(home, seen.reads), _in(home, seen.writes)
            _tell(seen, started, Evidence(shown, command.line, command.text, "moves files, data, io-bound"))
            line = command.whole_line
            made.append(
                Program(
                    Path(started.program).stem or "command", command.text, shown, command.line,
                    f"{into}{line}" if alone and "*" not in line and not command.repeats else None, seen, group=shown,
                    is_known=alone and self._is_known(started, command, path.parent),
                    gpus=started.gpus, nodes=started.nodes, repeats=command.repeats, rounds=command.rounds, apart=command.apart,
                )
            )  # fmt: skip
        return made

    def _of_python(self, paths: Sequence[Path], python: str) -> list[Program]:
        made = []
        imported: set[Path] = set()
        scripts: list[tuple[Path, Script]] = []
        for count, path in enumerate(paths, 1):
            if len(paths) >= ENOUGH_FILES:
                self._tell(f"{count} of {len(paths)} Python files")
            if path in self._started or NO_PROGRAM.match(path.name) or self._is_module(path):
                continue
            script = self._script(path, ())
            if script is not None and self._runs(path, script):
                scripts.append((path, script))
        for path, script in scripts:
            for origin in script.module.imports.values():
                leads_to, _ = self.project.leads_to(script.module, origin)
                if leads_to is not None and leads_to.path != path:
                    imported.add(leads_to.path)
        for path, script in scripts:
            if path in imported and not script.has_guard:
                continue
            shown = self._shown(path)
            first = script.flow.steps[0].node if script.flow.steps else script.module.tree.body[-1]
            line = getattr(first, "lineno", 1)
            made.append(
                Program(path.stem, f"python {shown}", shown, line, (python, shown), script.whole(), group=shown)
            )
        return made

    def _is_module(self, path: Path) -> bool:
        """Whether it is a part of a package and never says that it can be run: not worth reading here."""
        return (path.parent / "__init__.py").exists() and "__main__" not in self._text(path)

    def _runs(self, path: Path, script: Script) -> bool:
        """Whether it is meant to be run: it says so, or it works and is no part of a package."""
        if script.has_guard:
            return not script.is_library
        return bool(script.flow.steps) and not (path.parent / "__init__.py").exists()

    # --- what a command does ------------------------------------------------------------------------------------------

    def _seen(self, command: shell.Command, folder: Path, depth: int) -> tuple[Seen, shell.Started]:
        started = shell.started(command)
        seen = Seen(reads=set(command.reads), writes=set(command.writes))
        path = self._path(started, folder)
        if path is not None and started.is_python:
            self._started.add(path)
            script = self._script(path, started.arguments)
            if script is not None:
                seen.add(script.whole())
        elif path is not None and path.suffix == ".sh" and depth < DEEPEST:
            self._started.add(path)
            for inner in shell.commands(self._text(path)):
                seen.add(self._seen(inner, path.parent, depth + 1)[0])
        else:
            _by_words(seen, started)
        return seen, started

    def _home(self, path: Path, commands: Sequence[shell.Command]) -> str:
        """Where a shell script is meant to be run: in the folder that was asked about, or in its own if its programs are there."""
        for command in commands:
            found = self._path(shell.started(command), path.parent)
            if found is not None:
                inside = Path(os.path.normpath(self.root / shell.started(command).program)) != found
                return self._shown(path.parent) if inside else "."
        return "."

    def _is_known(self, started: shell.Started, command: shell.Command, folder: Path) -> bool:
        path = self._path(started, folder)
        if path is not None and started.is_python:
            return self._scripts.get((path, started.arguments)) is not None
        return started.program.rsplit("/", 1)[-1] in COPYING or bool(command.writes and not started.arguments)

    def _path(self, started: shell.Started, folder: Path) -> Path | None:
        name = started.program.replace(".", "/") + ".py" if started.is_module else started.program
        for start in (self.root, folder):
            path = Path(os.path.normpath(start / name))
            if path.is_file() and path.suffix in {".py", ".sh"}:
                return path
        return None

    def _script(self, path: Path, words: tuple[str, ...]) -> Script | None:
        key = (path, words)
        if key not in self._scripts:
            try:
                self._scripts[key] = Script(self.project, self.project.module(path), words)
            except WrongInput as error:
                self._leave_out(error)
                self._scripts[key] = None
            except RecursionError:
                self._leave_out(Unreadable(f"{self._shown(path)}: it is nested too deeply to be read."))
                self._scripts[key] = None
        return self._scripts[key]

    def _text(self, path: Path) -> str:
        """Of a file that can be read; else nothing, and a note."""
        try:
            return read_bytes(path, self._shown(path)).decode(errors="replace")
        except WrongInput as error:
            self._leave_out(error)
            return ""

    def _leave_out(self, error: WrongInput) -> None:
        sentence = f"Left out: {error}"
        if sentence not in self.notes:
            self.notes.append(sentence)

    # --- what they need -----------------------------------------------------------------------------------------------

    def _tasks(self, found: list[Program]) -> list[Task]:
        names = unique(program.name for program in found)
        edges: dict[tuple[int, int], str] = {}
        first_of = {program.name: place for place, program in reversed(list(enumerate(found)))}
        for place, program in enumerate(found):
            for name, why in program.needs.items():
                if name in first_of and first_of[name] != place:
                    edges[first_of[name], place] = why
        for later, program in enumerate(found):
            for earlier, other in enumerate(found):
                if earlier == later:
                    continue
                same = program.group == other.group
                if same and earlier > later:
                    continue
                whys = list(shared_files(other.seen, program.seen, only_results=not same))
                if whys:
                    edges.setdefault((earlier, later), "; ".join(whys))
                elif same and not other.apart and not (program.is_known and other.is_known):
                    edges.setdefault((earlier, later), f"order in {program.group}")
        self._break_circles(edges, names, len(found))
        needs: dict[int, list[Need]] = {}
        for (earlier, later), why in sorted(edges.items()):
            needs.setdefault(later, []).append(Need(names[earlier], why))
        return [self._task(program, names[place], needs.get(place, [])) for place, program in enumerate(found)]

    def _task(self, program: Program, name: str, needs: list[Need]) -> Task:
        task = task_of(
            name, program.seen, does=program.does, file=program.file, line=program.line, end_line=program.line, needs=needs,
            repeats=program.repeats, rounds=program.rounds,
        )  # fmt: skip
        gpus = program.gpus if program.gpus is not None and task.kind != "data" else gpus_of(program.seen)
        return replace(task, command=program.command, gpus=gpus, nodes=program.nodes)

    def _break_circles(self, edges: dict[tuple[int, int], str], names: list[str], count: int) -> None:
        """Who need each other through files keep the order in which they are listed."""
        after: dict[str, set[str]] = {str(place): set() for place in range(count)}
        for earlier, later in edges:
            after[str(earlier)].add(str(later))
        circle_of = circles(after)
        for earlier, later in list(edges):
            if earlier > later and circle_of[str(earlier)] == circle_of[str(later)]:
                del edges[earlier, later]
                self.notes.append(
                    f"{names[later]} and {names[earlier]} need each other; {names[later]} is taken to come first."
                )


def _tell(seen: Seen, started: shell.Started, evidence: Evidence) -> None:
    """Programs that are known by their name."""
    if started.program.rsplit("/", 1)[-1] in COPYING:
        seen.note((evidence.file, evidence.line, evidence.says), Clue(evidence, MOVES_FILES, 0))


def _by_words(seen: Seen, started: shell.Started) -> None:
    """Files of a program nobody can look into: what looks like a path; behind -o and the like, one it writes."""
    name = started.program.rsplit("/", 1)[-1]
    words = list(started.arguments)
    if COPYING.get(name):
        paths = [word for word in words if not word.startswith("-")]
        seen.reads |= set(paths[:-1])
        seen.writes |= set(paths[-1:])
        return
    for before, word in zip(["", *words], words, strict=False):
        option, _, value = word.partition("=") if word.startswith("-") else (before, "", word)
        writes = re.match(r"^(-[oOCd]$|--(out|save|dest))", option) is not None
        if value.startswith("-") or "://" in value or not re.search(r"\w" if writes else r"[\w*]\.\w+$|/", value):
            continue
        (seen.writes if writes else seen.reads).add(value)


def _with_recipe(names: Sequence[str], rules: dict[str, makefile.Target]) -> list[str]:
    """Targets without a recipe stand for what they need."""
    found: list[str] = []
    waiting, known = list(names), set()
    while waiting:
        name = waiting.pop(0)
        if name in known or name not in rules:
            continue
        known.add(name)
        if rules[name].recipe:
            found.append(name)
        else:
            waiting += rules[name].needs
    return found


def _in(folder: str, names: set[str]) -> set[str]:
    """Paths as they are called from the folder above."""
    return {posixpath.normpath(posixpath.join(folder, name)) for name in names if is_known(name)}


def _more(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
