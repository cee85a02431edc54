"""Which performance model is used: the one that ships, or a file that may be written anew at any time.

A new file is read beside the model in use. Both are judged by tasks of the last days that said what they compute, and that
the new one has not learnt from; if it is worse, or can not be read, the old one stays. Where too few such tasks have ended,
nothing speaks against it, and it is taken.
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

NEEDS_LEARN = "Tasks say what they compute, and nothing is foretold of them: pip install 'gpuyard[learn]'."
LAST_SECONDS = 7 * 86_400.0
ENOUGH = 20
"""Tasks that two models are judged by, at the least."""

log = structlog.get_logger()


@dataclass
class ModelStatus:
    """Which model is used and why, for people."""

    file: str | None = None
    """None: the one that ships."""
    since: float | None = None
    """When it was taken; none: it was there from the beginning."""
    why: str = "It ships with gpuyard."
    refused: int = 0
    """Files that were not taken."""
    refused_why: str | None = None
    """Why the last one was not."""
    trained_on: dict[str, int] = field(default_factory=dict)
    """Rows of each kind."""


class ModelFile:
    """The model in use. Its methods may be called from any thread."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.standing = ModelStatus()
        self._model: PerformanceModel | None = None
        self._missing = False
        self._stamp: tuple[int, int] | None = None
        """Of the file that was looked at last."""
        self._lock = Lock()

    def current(self) -> "PerformanceModel | None":
        """The model; none: what it needs is not installed, and the log has said so."""
        with self._lock:
            return self._current()

    def _current(self) -> "PerformanceModel | None":
        if self._model is None and not self._missing:
            try:
                from gpuyard.learn.performance.model import SHIPPED, load

                self._use(load(SHIPPED))
            except ImportError:
                self._missing = True
                log.warning("nothing_foretold", message=NEEDS_LEARN)
        return self._model

    def renew(self, ended: "Callable[[float], list[EndedRun]]") -> bool:
        """Look at the file; whether another model is used now. `ended` are tasks that ended after an instant."""
        stamp = self._new_stamp()
        if stamp is None:
            return False
        self._stamp = stamp
        assert self.path is not None
        try:
            from gpuyard.learn.performance.model import load

            new = load(self.path)
        except ImportError:
            self.current()  # says that it is missing
            return False
        except WrongInput as error:
            return self._refuse(f"{error}.")
        except Exception as error:  # whatever is in that file, the scheduler goes on with the model it has
            return self._refuse(f"{self.path} can not be read as a model: {error}.")
        now = time.time()
        return self._judge(new, ended(max(now - LAST_SECONDS, new.seen_until)), now)

    def _new_stamp(self) -> tuple[int, int] | None:
        """Of the file, if it is another than the last time."""
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

        why = f"Only {len(ran)} tasks of the last days could tell, and nothing speaks against it."
        with self._lock:
            if len(ran) >= ENOUGH and (old := self._current()) is not None:
                before, after = mean_error(old, ran), mean_error(new, ran)
                if before is not None and after is not None:
                    figures = f"{before:.1%} before and {after:.1%} with it, on {len(ran)} tasks of the last days"
                    if after > before:
                        return self._refuse(f"{self.path} is worse: run times were wrong by {figures}.")
                    why = f"It is as good or better: run times were wrong by {figures}."
            self._use(new)
        standing = self.standing
        standing.file, standing.since, standing.why = str(self.path), now, why
        log.info("model_taken", file=str(self.path), why=why)
        return True

    def _use(self, model: "PerformanceModel") -> None:
        self._model = model
        self.standing.trained_on = dict(model.trained_on)

    def _refuse(self, why: str) -> bool:
        self.standing.refused += 1
        self.standing.refused_why = why
        log.warning("model_not_taken", file=str(self.path), why=why)
        return False
