"""`gpuyard alerts` says to whom an alert was sent."""

import sys

import pytest

from gpuyard import cli
from gpuyard.live.wire.alert_answers import AlertAnswer, AlertList
from tests.unit.live.sdk.fake_server import fake_server

SINCE = "2026-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("alert", "sent"),
    [
        (AlertAnswer("a", "gpu_hot", "warning", "pending", {}, "Hot.", 90.0, SINCE), "–"),
        (AlertAnswer("a", "gpu_hot", "warning", "firing", {}, "Hot.", 90.0, SINCE, SINCE), "–"),
        (AlertAnswer("a", "gpu_hot", "warning", "firing", {}, "Hot.", 90.0, SINCE, SINCE, sent_to=["ops"]), "ops"),
        (AlertAnswer("a", "gpu_hot", "warning", "firing", {}, "Hot.", 90.0, SINCE, SINCE, inhibited=True), "inhibited"),
    ],
)
def test_an_alert_is_sent_when_a_receiver_was_told(
    alert: AlertAnswer, sent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server(lambda line: line.say(AlertList([alert], 1, 0))) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "alerts", "--server", server.url])
        assert cli.main() == 0
    head, row = capsys.readouterr().out.splitlines()
    assert (head.split()[-2:], row.split()[-2:]) == (["SENT", "SUMMARY"], [sent, "Hot."])
