"""A session that is refused before it has begun: which refusals end it, and which are waited for."""

import pytest

from gpuyard.cli.console.session import SessionEnd, TerminalSession
from gpuyard.live.sdk import Refused
from gpuyard.live.sdk.console import TaskConsole
from gpuyard.live.sdk.websocket import ClientWebSocket


class Refusals:
    """A scheduler that refuses, each time with the next code."""

    def __init__(self, *codes: str) -> None:
        self._codes = list(codes)
        self.asked = 0

    def open(self) -> ClientWebSocket:
        self.asked += 1
        raise Refused(f"refusal {self.asked}", status=503, code=self._codes.pop(0))


def _end(refusals: Refusals, *, insists: bool) -> SessionEnd:
    console = TaskConsole(refusals.open)
    session = TerminalSession(console, escape=False, reads=False, types=True, again="attach", insists=insists)
    return session.run()


@pytest.mark.parametrize(("insists", "asked", "reason"), [(False, 1, "TooManyChannels"), (True, 3, "NotOwner")])
def test_only_a_task_that_has_waited_for_its_gpus_waits_for_room(insists: bool, asked: int, reason: str) -> None:
    refusals = Refusals("TooManyChannels", "TooManyChannels", "NotOwner")
    end = _end(refusals, insists=insists)
    assert (end.why, end.reason, end.sentence) == ("refused", reason, f"refusal {asked}")
    assert refusals.asked == asked


def test_a_node_that_is_away_is_waited_for() -> None:
    refusals = Refusals("NodeUnreachable", "NotReady", "NotOwner")
    assert _end(refusals, insists=False).reason == "NotOwner"
    assert refusals.asked == 3
