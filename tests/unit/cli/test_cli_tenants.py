"""`gpuyard tenants set` changes the limits it names and keeps the others."""

import sys
from typing import Any

import pytest

from gpuyard import cli
from gpuyard.live.wire.answers import TenantAnswer, TenantList
from tests.unit.live.sdk.fake_server import Answering, fake_server


def tenant(name: str, **limits: Any) -> TenantAnswer:
    usual: dict[str, Any] = {"max_gpus": None, "guaranteed_gpus": None, "max_gpus_by_model": {}, "weight": 1.0}
    usual |= {"gpu_hours": None, "gpu_hours_period": None}
    return TenantAnswer(id=name, used_gpus=0, pending_tasks=0, running_tasks=0, **{**usual, **limits})


LAB = tenant(
    "lab", max_gpus=8, guaranteed_gpus=2, max_gpus_by_model={"H100": 4, "A100": 2}, weight=3.0,
    gpu_hours=10.0, gpu_hours_period=3600.0,
)  # fmt: skip
EVERY = TenantList([tenant("default", max_gpus=1), LAB], 2)


def answers(line: Answering) -> None:
    line.say(EVERY if line.asked.method == "GET" else LAB)


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (
            "lab --max-open-tasks 3 --max-by-model A100=1",
            {
                "max_gpus": 8, "guaranteed_gpus": 2, "max_gpus_by_model": {"H100": 4, "A100": 1}, "weight": 3.0,
                "gpu_hours": 10.0, "gpu_hours_period": 3600.0, "max_open_tasks": 3,
            },
        ),
        ("lab --max-open-tasks 3 --reset", {"max_open_tasks": 3}),
        ("lab --reset", {}),
        ("new --weight 2", {"max_gpus": 1, "max_gpus_by_model": {}, "weight": 2.0}),
    ],
)  # fmt: skip
def test_limits_that_are_not_named_are_kept(words: str, sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server(answers) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        monkeypatch.setattr(sys, "argv", ["gpuyard", "tenants", "set", *words.split()])
        assert cli.main() == 0
        put = server.asked[-1]
    assert (put.method, put.path) == ("PUT", f"/api/v1/tenants/{words.split(maxsplit=1)[0]}")
    assert put.body == sent


def test_a_change_that_names_no_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "tenants", "set", "lab"])
    assert cli.main() == 2
    assert "give at least one limit, or --reset to remove all" in capsys.readouterr().err
