"""Sources for tests, and what is read from them."""

from pathlib import Path
from textwrap import dedent

from gpuyard.learn.analysis.graph import Graph, Task
from gpuyard.learn.analysis.reading import analyze


class Read:
    """What was read, asked by name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tasks = {task.id: task for task in graph.tasks}

    def __getitem__(self, name: str) -> Task:
        return self.tasks[name]

    @property
    def names(self) -> list[str]:
        return list(self.tasks)

    def needs(self, name: str) -> set[str]:
        return {need.task for need in self.tasks[name].needs}

    def why(self, name: str, other: str) -> str:
        return next(need.why for need in self.tasks[name].needs if need.task == other)


def script(folder: Path, source: str, *words: str) -> Read:
    """A script with this source."""
    path = folder / "script.py"
    path.write_text(dedent(source))
    return Read(analyze(path, words)[0])


def folder_of(folder: Path, **files: str) -> Read:
    """A folder with these files; the last _ of a name is its dot."""
    for name, source in files.items():
        stem, _, ending = name.rpartition("_")
        (folder / (f"{stem}.{ending}" if stem else name)).write_text(dedent(source))
    return Read(analyze(folder)[0])
