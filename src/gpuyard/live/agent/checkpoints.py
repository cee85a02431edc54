"""Checkpoint folders: one per task, kept from one attempt of the task to the next.

    FOLDER/CLUSTER/THOUSAND/TASK-SUBMITTED      such as checkpoints/8d969eef6eca/12/12345-64d1f0a3c5e80

CLUSTER is derived from the id of the cluster, THOUSAND limits the size of a folder, and SUBMITTED is the time of the
submission: after a restored backup another task can have the same number. So the path is the same for all attempts of a
task on all nodes with the same `executor.checkpoint_dir`, and on a shared file system so are the files.

The starter of an attempt makes the folder (`supervisor/launcher.py`), because a file system that does not answer must not
block the agent. Only the scheduler knows whether a task will run again, so the agent reports the folders from time to
time, and removes those that the scheduler names.
"""

import os
import re
import shutil
import stat
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from gpuyard.core.journal.folders import refuse_unsafe_folder
from gpuyard.live.wire import agents_pb2 as pb

MOST_REPORTED = 2_000
"""Maximum number of folders in one report; the next report continues after the last one."""
MODE = 0o711
"""Of the folders above those of the tasks: other users can pass through, but not list them."""
_NAME = re.compile(r"([1-9][0-9]{0,18})-([0-9a-f]{1,16})")


class CheckpointFolders:
    """The checkpoint folders of one node, or of all nodes that share the file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster_id: Callable[[], str] = lambda: ""
        """The id of the cluster that this node belongs to."""
        self._reported = (0, 0)
        """The last folder of the last report."""

    def path_of(self, task: int, submitted_us: int) -> Path:
        """Return the folder of a task."""
        return self._of_cluster() / str(task // 1000) / f"{task}-{submitted_us:x}"

    def _of_cluster(self) -> Path:
        return self.folder / sha256(self.cluster_id().encode()).hexdigest()[:12]

    def report(self, held: Collection[int]) -> list[pb.Checkpoint]:
        """Return the next folders of this cluster, in the order of task numbers, without those of tasks that run here."""
        found = sorted(entry for entry in self._all() if entry[0] not in held)
        begin = bisect_right(found, self._reported, key=lambda entry: entry[:2])
        chosen = found[begin : begin + MOST_REPORTED]
        self._reported = chosen[-1][:2] if begin + len(chosen) < len(found) else (0, 0)
        report = []
        for task, submitted_us, path in chosen:
            with suppress(OSError):
                changed_at = Path(path).lstat().st_mtime
                with os.scandir(path) as entries:
                    empty = next(entries, None) is None
                idle_seconds = max(0.0, time.time() - changed_at)
                report.append(
                    pb.Checkpoint(task=task, submitted_us=submitted_us, empty=empty, idle_seconds=idle_seconds)
                )
        return report

    def _all(self) -> Iterator[tuple[int, int, str]]:
        """Yield task number, submission time and path of all folders of this cluster."""
        with suppress(OSError), os.scandir(self._of_cluster()) as thousands:
            for thousand in thousands:
                with suppress(OSError), os.scandir(thousand.path) as entries:
                    for entry in entries:
                        if named := _NAME.fullmatch(entry.name):
                            yield int(named[1]), int(named[2], 16), entry.path

    def remove(self, task: int, submitted_us: int) -> str:
        """Remove the folder of a task. Return why that failed; empty if it is gone."""
        path = self.path_of(task, submitted_us)
        try:
            shutil.rmtree(path)  # does not follow symbolic links
        except FileNotFoundError:
            return ""  # another node that shares the file system has removed it
        except OSError as error:
            return f"{error.filename or path}: {error.strerror}"
        with suppress(OSError):  # it has other folders
            path.parent.rmdir()
        return ""


def open_checkpoint_folder(folder: Path) -> None:
    """Create the folder that holds all checkpoint folders.

    Raise OSError, or FolderNotSafe if another user could put folders into it.
    """
    refuse_unsafe_folder(folder, "checkpoint folder", "executor.checkpoint_dir")
    folder.mkdir(mode=MODE, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) != MODE:
        folder.chmod(MODE)
