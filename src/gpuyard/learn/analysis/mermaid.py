"""The task graph as a Mermaid diagram: text that GitHub, GitLab and MkDocs draw."""

from gpuyard.learn.analysis.graph import TaskGraph

COLORS = {"training": "#f4b183", "inference": "#9dc3e6", "data": "#c5e0b4", "hpc": "#d9c3e8", "other": "#e4e4e4"}


def mermaid(graph: TaskGraph) -> str:
    """Return the diagram: one box per task, colored by class; edges of the critical path are thick."""
    number = {task.id: f"t{at}" for at, task in enumerate(graph.tasks)}
    path = set(zip(graph.critical_path, graph.critical_path[1:], strict=False))
    lines = ["flowchart LR"]
    for task in graph.tasks:
        rounds = f" ×{task.rounds}" if task.rounds else ""
        bound = "" if task.bound == "unknown" else f", {task.bound}"
        lines.append(f'    {number[task.id]}["{task.id}{rounds}<br/>{task.kind}{bound}"]:::{task.kind}')
    for task in graph.tasks:
        for need in task.needs:
            arrow = "==>" if (need.task, task.id) in path else "-->"
            lines.append(f"    {number[need.task]} {arrow} {number[task.id]}")
    used = sorted({task.kind for task in graph.tasks})
    lines += [f"    classDef {kind} fill:{COLORS[kind]},stroke:#444,color:#111" for kind in used]
    return "\n".join([*lines, ""])
