"""Three ways to watch the demonstration: a moving picture, lines of text, lines of JSON. The facts are the same in all."""

from time import monotonic, sleep

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gpuyard.cli.demo.picture import Picture
from gpuyard.cli.demo.stage import Stage
from gpuyard.cli.sentences import clock

FRAMES_PER_SECOND = 8


def show_picture(stage: Stage, console: Console, speed: float) -> None:
    """Draw the yard as time passes, `speed` virtual seconds for each second on the wall."""
    picture = Picture(stage, speed)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        began = monotonic()
        frame = 0
        while not stage.over:
            stage.advance((monotonic() - began) * speed)
            live.update(picture.draw(console.size), refresh=True)
            frame += 1
            sleep(max(0.0, began + frame / FRAMES_PER_SECOND - monotonic()))
    show_summary(stage, console)


def show_lines(stage: Stage, console: Console) -> None:
    """Print every fact as a sentence; virtual time passes as fast as the engine decides."""
    for at, _, sentence in _all(stage):
        print(f"{clock(at)}  {sentence}")
    show_summary(stage, console)


def show_json(stage: Stage) -> None:
    """Print every fact as an object, and the summary as the last one."""
    for at, event, _ in _all(stage):
        print(msgspec.json.encode({"at": round(at, 3), **msgspec.to_builtins(event)}).decode())
    print(msgspec.json.encode({"summary": stage.tally.summary()}).decode())


def _all(stage: Stage) -> list[tuple[float, object, str]]:
    facts: list[tuple[float, object, str]] = []
    while not stage.over:
        due = stage.world.next_event()
        facts += stage.advance(stage.length if due is None else due)
    return facts


def show_summary(stage: Stage, console: Console) -> None:
    """The counts as a table, and one line that says what this was."""
    counts = stage.tally.summary()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name in ("submitted", "succeeded", "failed", "cancelled", "timed_out", "open"):
        table.add_row(name.replace("_", " "), f"{counts[name]:.0f}")
    table.add_row("preempted", f"{counts['preempted']:.0f}")
    table.add_row("mean wait", f"{counts['mean_wait_seconds']:.0f} s")
    table.add_row("GPU time used", f"{counts['utilisation']:.0%}")
    console.print()
    console.print(table)
    console.print()
    hosts = stage.state.index.hosts.values()
    gpus = sum(len(host.spec.gpus) for host in hosts)
    print(
        f"You saw {counts['submitted']:.0f} tasks share {gpus} virtual GPUs on {len(hosts)} nodes for "
        f"{clock(counts['virtual_seconds'])} of virtual time; nothing real ran."
    )
