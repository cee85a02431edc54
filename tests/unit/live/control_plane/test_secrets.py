"""Secrets of tasks: available when the task starts, nowhere else, deleted when it has ended."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.core.domain.values import TaskId
from gpuyard.live.control_plane.stores.database import StoreDamaged, StoreLocked
from gpuyard.live.control_plane.stores.secrets import SecretStore

ONE, TWO, THREE = TaskId(1), TaskId(2), TaskId(3)
HIDDEN = "swordfish-" * 20


def content(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> SecretStore:
    return SecretStore.open(tmp_path / "secrets.sqlite")


def test_each_task_gets_its_values_back(store: SecretStore) -> None:
    store.put({ONE: {"KEY": "v", "пароль": "密码\n"}, TWO: {"KEY": "x"}})
    store.put({THREE: {"KEY": "w"}, TaskId(4): {}})

    assert store.get(ONE) == {"KEY": "v", "пароль": "密码\n"}
    assert store.get(TWO) == {"KEY": "x"}
    assert store.get(THREE) == {"KEY": "w"}
    assert store.get(TaskId(4)) == store.get(TaskId(99)) == {}


def test_changing_returned_values_changes_nothing_for_the_next_caller(store: SecretStore) -> None:
    store.put({ONE: {"KEY": "v"}})
    store.get(ONE).clear()
    assert store.get(ONE) == {"KEY": "v"}


def test_values_survive_a_restart_until_their_task_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "secrets.sqlite"
    store = SecretStore.open(path)
    store.put({task: {"KEY": "v"} for task in (ONE, TWO)})
    store.drop([TWO, TaskId(99)])
    store.close()

    store = SecretStore.open(path)
    assert store.get(ONE) == {"KEY": "v"}
    assert store.get(TWO) == {}


def test_values_without_an_open_task_are_removed_at_start(store: SecretStore) -> None:
    store.put({task: {"KEY": "v"} for task in (ONE, TWO, THREE)})

    assert store.sweep({TWO}) == 2
    assert [store.get(task) for task in (ONE, TWO, THREE)] == [{}, {"KEY": "v"}, {}]


def test_dropped_values_are_no_longer_in_the_file(store: SecretStore, tmp_path: Path) -> None:
    store.put({task: {"KEY": HIDDEN} for task in (ONE, TWO)})
    assert HIDDEN.encode() in content(tmp_path)
    store.drop([ONE])
    store.sweep(set())
    assert HIDDEN.encode() not in content(tmp_path)
    store.close()
    assert HIDDEN.encode() not in content(tmp_path)


def test_the_file_is_private(store: SecretStore, tmp_path: Path) -> None:
    store.put({ONE: {"KEY": "v"}})
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_values_are_in_no_repr_of_the_store(store: SecretStore) -> None:
    store.put({ONE: {"KEY": HIDDEN}})
    assert HIDDEN not in f"{store!r} {store} {vars(store)}"


def test_stored_values_survive_a_kill_and_the_file_stays_private(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from gpuyard.live.control_plane.stores.secrets import SecretStore
store = SecretStore.open(Path(sys.argv[1]))
store.put({1: {"KEY": "v"}})
print(flush=True)
sys.stdin.read()
"""
    path = tmp_path / "secrets.sqlite"
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"\n"
        with pytest.raises(StoreLocked, match=r"secrets of tasks"):
            SecretStore.open(path)
        server.kill()

    assert SecretStore.open(path).get(ONE) == {"KEY": "v"}


def test_a_damaged_file_is_refused_with_a_solution(tmp_path: Path) -> None:
    (tmp_path / "secrets.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(StoreDamaged, match=r"secrets of tasks.*move it away"):
        SecretStore.open(tmp_path / "secrets.sqlite")
