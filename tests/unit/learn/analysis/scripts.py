"""Scripts for tests, and what was read from them."""

from pathlib import Path
from textwrap import dedent

from gpuyard.learn.analysis import ScriptTask, TaskGraph, analyze


class Read:
    """An analyzed script, asked by the names of its tasks."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.tasks = {task.id: task for task in graph.tasks}

    def __getitem__(self, name: str) -> ScriptTask:
        return self.tasks[name]

    @property
    def names(self) -> list[str]:
        return list(self.tasks)

    def needs(self, name: str) -> set[str]:
        """Tasks that have to run before, directly or through others."""
        direct = {need.task for need in self.tasks[name].needs}
        return direct.union(*(self.needs(other) for other in direct))

    def why(self, name: str, other: str) -> str:
        return next(need.why for need in self.tasks[name].needs if need.task == other)


def script(folder: Path, source: str, *arguments: str) -> Read:
    """A script with this source."""
    path = folder / "script.py"
    path.write_text(dedent(source))
    return Read(analyze(path, arguments))
