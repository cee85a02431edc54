"""Print something again and again, in place on a terminal, until Ctrl-C."""

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from gpuyard.cli.input.options import finite
from gpuyard.cli.output.screen import Screen, screen_of

WatchOption = Annotated[bool, typer.Option("-w", "--watch", help="Print it again and again until Ctrl-C.")]
IntervalOption = Annotated[
    float,
    typer.Option("--interval", metavar="SECONDS", min=0.5, help="Time between two looks of --watch.", callback=finite),
]


def keep_printing(lines: Callable[[Screen], list[str]], interval_seconds: float) -> None:
    """Print the lines every so often. A terminal that moves its cursor shows them in place, without flicker.

    While the scheduler cannot be reached, the last lines stay and a line below says so.
    """
    from gpuyard.live.sdk.waiting import AWAY

    shown: list[str] = []
    try:
        while True:
            screen, trouble = screen_of(), ""
            try:
                shown = lines(screen)
            except AWAY as error:
                if not shown:
                    raise
                trouble = f"gpuyard: {str(error).split('. ')[0].rstrip('.')}. Trying again."
            _show([*shown, *([trouble] if trouble else [])], screen, interval_seconds)
            time.sleep(interval_seconds)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _show(lines: list[str], screen: Screen, interval_seconds: float) -> None:
    stamp = f"{time.strftime('%H:%M:%S')}  every {interval_seconds:g} s, Ctrl-C ends"
    if not screen.moves:
        sys.stdout.write("".join(f"{line}\n" for line in (stamp, *lines, "")))
    else:
        fitting = [stamp, *lines][: max(1, screen.height - 1)]
        # Each line is written over the old one and the rest cleared: clearing everything first would flicker.
        sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in fitting) + "\x1b[J")
    sys.stdout.flush()
