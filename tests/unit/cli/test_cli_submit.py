"""`submit` and `run` of a task that no present node can hold: the reason once, and what to do."""

import pytest

from gpuyard.cli.output.progress import WaitProgress
from gpuyard.cli.submit import warn_if_nothing_fits
from gpuyard.core.domain.refusals import REFUSALS, NoNodesYet
from gpuyard.live.sdk import connect
from tests.unit.cli.test_cli_explain import explanation
from tests.unit.live.sdk.fake_server import Answering, fake_server, task


def said(code: str, capsys: pytest.CaptureFixture[str], *, alone: bool) -> str:
    """On standard error, by `submit` (alone) or by `run`, which goes on to tell how the task waits."""
    waits = task(reason="The reason.", reason_code=code)

    def answers(line: Answering) -> None:
        line.say(explanation(reason="The reason.", reason_code=code))

    with fake_server(answers) as server:
        warn_if_nothing_fits(connect(server.url, token=""), waits, alone=alone)
    if not alone:
        with WaitProgress(quiet=False) as progress:
            progress.tell(waits)
            progress.tell(waits)
    return capsys.readouterr().err


@pytest.mark.parametrize("alone", [True, False])
def test_before_the_first_node_submit_says_once_that_the_agent_of_up_is_about_to_join(
    alone: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(NoNodesYet.__name__, capsys, alone=alone)
    assert told.count("No node has joined yet. The agent of `gpuyard up` joins a few seconds after its start") == 1
    assert told.count("\n") == 1
    assert "cancel it" not in told
    assert NoNodesYet in REFUSALS


@pytest.mark.parametrize("alone", [True, False])
def test_the_reason_is_shown_once(alone: bool, capsys: pytest.CaptureFixture[str]) -> None:
    told = said("NodeTooSmall", capsys, alone=alone)
    assert told.count("task-7 waits. The reason.") == 1
    assert told.count("No current node is large enough. The task starts when a suitable node joins") == 1


@pytest.mark.parametrize("alone", [True, False])
def test_where_a_quota_is_too_small_no_larger_node_is_suggested(
    alone: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said("ClassQuotaTooSmall", capsys, alone=alone) == "gpuyard: task-7 waits. The reason.\n"
