"""`gpuyard demo`: the engine at work on a virtual cluster, to be watched in the terminal.

It is the real engine in the simulator's world; only the nodes and the clock are virtual. In a terminal it is a moving
picture, in a pipe it is lines and does not wait.
"""

from typing import Annotated

import typer

from gpuyard.cli.options import finite, json_option


def demo(
    seconds: Annotated[float, typer.Option(callback=finite, min=1, max=3600, help="How long the show takes.")] = 25.0,
    speed: Annotated[
        float, typer.Option(callback=finite, min=1, max=10_000, help="Virtual seconds that pass in one second.")
    ] = 120.0,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another story.")] = 7,
    nodes: Annotated[
        int, typer.Option(min=2, max=64, help="Virtual nodes; two of three have 8 GPUs, the others 4.")
    ] = 6,
    as_json: Annotated[bool, json_option("One JSON object a fact, then a summary; no picture.")] = False,
) -> None:
    """Watch the engine schedule a virtual cluster; nothing real runs."""
    from rich.console import Console

    from gpuyard.cli.demo.show import show_json, show_lines, show_picture
    from gpuyard.cli.demo.stage import Stage
    from gpuyard.cli.demo.workload import workload

    length = seconds * speed
    stage = Stage(workload(seed, nodes, length), length)
    console = Console(highlight=False)
    if as_json:
        show_json(stage)
    elif console.is_terminal and not console.is_dumb_terminal:
        show_picture(stage, console, speed)
    else:
        show_lines(stage, console)
