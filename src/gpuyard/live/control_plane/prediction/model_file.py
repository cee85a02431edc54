"""Select the performance model: the built-in one, or a file that may be replaced at any time.

A new file is loaded in addition to the model in use. Both are judged by recent tasks with a declared workload that the
new model was not trained on. If the new model is worse or cannot be read, the old one stays. If too few such tasks have
ended, the new model is used.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.learn.performance.ended_tasks import EndedRun
    from gpuyard.learn.performance.model import PerformanceModel

NEEDS_LEARN = "Tasks declare their workload, but predictions need LightGBM: pip install 'gpuyard[learn]'."
LAST_SECONDS = 7 * 86_400.0
ENOUGH = 20
"""Minimum number of tasks to judge two models by."""

log = structlog.get_logger()


@dataclass
class ModelStatus:
    """The model in use and the reason, for people."""

    file: str | None = None
    """None: the built-in model."""
    since: float | None = None
    """When it was loaded; None: at the start."""
    why: str = "It is shipped with gpuyard."
    refused: int = 0
    """Number of files that were refused."""
    refused_why: str | None = None
    """Why the last file was refused."""
    trained_on: dict[str, int] = field(default_factory=dict)
    """Number of training rows by kind."""


class ModelFile:
    """The model in use. Its methods may be called from any thread."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.standing = ModelStatus()
        self._model: PerformanceModel | None = None
        self._missing = False
        self._stamp: tuple[int, int] | None = None
        """Stamp of the file that was checked last."""
        self._lock = Lock()

    def current(self) -> "PerformanceModel | None":
        """Return the model; None if its dependencies are not installed, which is logged."""
        with self._lock:
            return self._current()

    def _current(self) -> "PerformanceModel | None":
        if self._model is None and not self._missing:
            try:
                from gpuyard.learn.performance.model import SHIPPED, load

                self._use(load(SHIPPED))
            except ImportError:
                self._missing = True
                log.warning("predictions_disabled", message=NEEDS_LEARN)
        return self._model

    def renew(self, ended: "Callable[[float], list[EndedRun]]") -> bool:
        """Check the file; return whether it is now in use. `ended` returns the tasks that ended after a given time."""
        stamp = self._new_stamp()
        if stamp is None:
            return False
        self._stamp = stamp
        assert self.path is not None
        try:
            from gpuyard.learn.performance.model import load

            new = load(self.path)
        except ImportError:
            self.current()  # logs that it is missing
            return False
        except WrongInput as error:
            return self._refuse(f"{error}.")
        except Exception as error:  # whatever the file contains, the scheduler keeps its current model
            return self._refuse(f"{self.path} is not a readable model: {error}.")
        now = time.time()
        return self._judge(new, ended(max(now - LAST_SECONDS, new.seen_until)), now)

    def _new_stamp(self) -> tuple[int, int] | None:
        """Return the stamp of the file if it has changed since the last check, otherwise None."""
        if self.path is None:
            return None
        try:
            found = self.path.stat()
        except OSError:
            return None
        stamp = (found.st_mtime_ns, found.st_size)
        return None if stamp == self._stamp else stamp

    def _judge(self, new: "PerformanceModel", ran: "list[EndedRun]", now: float) -> bool:
        from gpuyard.learn.performance.ended_tasks import mean_error

        why = f"Only {len(ran)} recent tasks could be used to evaluate it, and they do not contradict it."
        with self._lock:
            if len(ran) >= ENOUGH and (old := self._current()) is not None:
                before, after = mean_error(old, ran), mean_error(new, ran)
                if before is not None and after is not None:
                    figures = f"{before:.1%} before and {after:.1%} with it, on {len(ran)} recent tasks"
                    if after > before:
                        return self._refuse(f"{self.path} is worse: mean error of run times {figures}.")
                    why = f"It is equal or better: mean error of run times {figures}."
            self._use(new)
        standing = self.standing
        standing.file, standing.since, standing.why = str(self.path), now, why
        log.info("model_loaded", file=str(self.path), why=why)
        return True

    def _use(self, model: "PerformanceModel") -> None:
        self._model = model
        self.standing.trained_on = dict(model.trained_on)

    def _refuse(self, why: str) -> bool:
        self.standing.refused += 1
        self.standing.refused_why = why
        log.warning("model_rejected", file=str(self.path), why=why)
        return False
