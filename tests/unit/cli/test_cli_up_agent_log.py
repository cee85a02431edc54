"""`gpuyard up` finds in the log of its agent why the agent is not admitted."""

from pathlib import Path

import pytest

from gpuyard.cli.service.log_output import _as_text
from gpuyard.cli.up.agent_log import refusal_since, size_of


def line(event: str, **more: str) -> bytes:
    return (
        _as_text(None, "error", {"event": event, **more, "level": "error", "timestamp": "2026-11-18T08:00:00Z"}) + b"\n"
    )


def refused(message: str) -> bytes:
    return line("registration_refused", address="127.0.0.1:9090", message=message)


@pytest.mark.parametrize("sentence", ["Node a reports 1600 GPUs; the maximum is 1024.", 'It\'s "refused".', "No."])
def test_the_last_refusal_is_found(tmp_path: Path, sentence: str) -> None:
    log = tmp_path / "agent.log"
    log.write_bytes(refused("An earlier reason.") + refused(sentence) + line("agent_ended", message="another event"))
    assert refusal_since(log, 0) == sentence


def test_refusals_of_an_earlier_start_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    log.write_bytes(refused("An earlier reason."))
    assert refusal_since(log, size_of(log)) == ""


def test_a_log_that_does_not_exist_has_no_refusal(tmp_path: Path) -> None:
    assert size_of(tmp_path / "none.log") == 0
    assert refusal_since(tmp_path / "none.log", 0) == ""
