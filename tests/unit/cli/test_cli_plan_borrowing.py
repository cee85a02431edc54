"""When `plan run` borrows GPUs of a cluster without being asked to."""

from typing import Any

import pytest

from gpuyard.cli.plan.borrowing import borrowing
from gpuyard.plan.workers import On


def options() -> Any:
    return None


@pytest.mark.parametrize(
    ("variables", "wanted", "borrows"),
    [
        ({}, None, False),
        ({"GPUYARD_SERVER": "http://a:1"}, None, True),
        ({"GPUYARD_SERVER": "http://a:1"}, False, False),
        ({"GPUYARD_SERVER": "http://a:1", "GPUYARD_TASK_ID": "7"}, None, False),
        ({"GPUYARD_SERVER": "http://a:1", "GPUYARD_TASK_ID": "7"}, True, True),
    ],
)
def test_a_plan_in_a_task_runs_on_the_gpus_of_the_task(
    variables: dict[str, str], wanted: bool | None, borrows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GPUYARD_SERVER", "GPUYARD_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (borrowing(On.LOCAL, wanted, None, None, options, print) is not None) is borrows
