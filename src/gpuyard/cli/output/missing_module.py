"""The hint after a `ModuleNotFoundError`: which virtual environment is active here, and why the task did not have it."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuyard.live.sdk import Task

KEPT_BYTES = 4096
_MISSING = re.compile(rb"^ModuleNotFoundError: No module named '?([^'\r\n]+)", re.MULTILINE)


class LastOutput:
    """The end of an output, as much as a traceback's last lines need."""

    def __init__(self) -> None:
        self.text = b""

    def add(self, part: bytes) -> None:
        """Append a part, and keep only the end."""
        self.text = (self.text + part)[-KEPT_BYTES:]


def hint_on_missing_module(task: "Task", output: bytes, env: Mapping[str, str]) -> str | None:
    """Return one sentence if a Python module was missing and the environment that is active here did not travel."""
    found = _MISSING.search(output)
    here = env.get("VIRTUAL_ENV") or env.get("CONDA_PREFIX")
    if task.exit_code in {0, None} or found is None or not here:
        return None
    if here in {task.env.get("VIRTUAL_ENV"), task.env.get("CONDA_PREFIX")}:
        return None
    module = found[1].decode(errors="replace")[:100]
    return (
        f"The module {module} was not found, and your active environment {here} did not travel with the task. Submit it "
        "without --clean-env, --no-venv and -e PATH."
    )
