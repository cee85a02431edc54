"""Which process runs `up` on a data folder: known exactly while it runs."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

from gpuyard.cli.up.lock_file import FILE, AlreadyUp, InstanceLock, NoFolder, running_cluster

HOLD = """
import sys, time
from pathlib import Path
from gpuyard.cli.up.lock_file import InstanceLock
with InstanceLock.take(Path(sys.argv[1])) as lock:
    lock.write("http://127.0.0.1:1", "127.0.0.1:2")
    print("up", flush=True)
    time.sleep(60)
"""


def test_no_cluster_is_up_on_a_new_folder(tmp_path: Path) -> None:
    assert running_cluster(tmp_path) is None
    assert running_cluster(tmp_path / "missing") is None


def test_a_second_up_is_told_which_process_runs(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        known = running_cluster(tmp_path)
        assert known is not None
        assert (known.pid, known.http, known.grpc) == (holder.pid, "http://127.0.0.1:1", "127.0.0.1:2")
        with (
            pytest.raises(AlreadyUp, match=f"process {holder.pid}, http://127.0.0.1:1.*gpuyard down"),
            InstanceLock.take(tmp_path),
        ):
            raise AssertionError("two at once")
        os.kill(holder.pid, signal.SIGKILL)

    assert running_cluster(tmp_path) is None, "the lock went with the process, although the file still names it"
    assert (tmp_path / FILE).read_bytes()
    with InstanceLock.take(tmp_path):
        assert running_cluster(tmp_path) is not None


def test_a_folder_that_cannot_be_created_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoFolder, match="--data-dir"), InstanceLock.take(tmp_path / "file" / "data"):
        raise AssertionError("there is no such folder")


def test_a_reader_of_the_mark_does_not_prevent_a_start(tmp_path: Path) -> None:
    with InstanceLock.take(tmp_path):
        pass
    reader = os.open(tmp_path / FILE, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)  # as `running_cluster` does for a moment
    release = Timer(0.05, os.close, (reader,))
    release.start()
    with InstanceLock.take(tmp_path):
        assert running_cluster(tmp_path) is not None
    release.join()
