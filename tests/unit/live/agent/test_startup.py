"""What an agent reports at its start, and which account it takes for the scheduler's."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpuyard.live.agent.agent_state import AgentStateFile
from gpuyard.live.agent.identity import Account, own_account
from gpuyard.live.agent.main import AgentNode, _note_settings
from gpuyard.live.agent.peer import uid_of_listener
from gpuyard.live.agent.settings import AgentSettings, load_agent_settings
from gpuyard.live.agent.supervisor_client import SupervisorClient
from gpuyard.live.wire.clock import SYSTEM_CLOCK

LISTENS = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
server.accept()[0].recv(1)
"""


def settings(folder: Path, text: str) -> AgentSettings:
    path = folder / "agent.yaml"
    path.write_text(text)
    return load_agent_settings(path, {})


def notes(folder: Path, text: str) -> dict[str, str]:
    with capture_logs() as logs:
        _note_settings(settings(folder, text))
    return {line["event"]: line["message"] for line in logs}


def test_an_agent_that_is_not_root_reports_that_it_cannot_run_tasks_as_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = own_account().user
    text = "executor: {users: {a: daemon}, system_users: {ada: nobody}}"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert notes(tmp_path, text) == {}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "this agent is not root" in notes(tmp_path, text)["system_users_ignored"]
    assert notes(tmp_path, f"executor: {{users: {{a: {me}}}, shared_user: true}}") == {}


def test_a_relative_work_folder_is_reported_with_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = notes(tmp_path, "executor: {work_dir: here}")["relative_work_dir_used"]
    assert f"it is now {tmp_path / 'here'}." in told
    assert notes(tmp_path, f"executor: {{work_dir: {tmp_path}/here}}") == {}


def test_the_account_of_the_scheduler_found_by_the_kernel_is_not_given_to_tasks(tmp_path: Path) -> None:
    """There is no file of the scheduler to look at: only what the kernel said when the node joined."""
    state_file = AgentStateFile(tmp_path, SYSTEM_CLOCK.machine_start())
    state_file.memory.scheduler_uid = pwd.getpwnam("daemon").pw_uid
    state_file.memory.cluster_id = "y"
    state_file.save()
    text = "agent: {join_token: t}\ngpu: {virtual: '1'}\nexecutor: {users: {a: daemon, b: nobody}}"
    node = AgentNode(settings(tmp_path, text), tmp_path)
    before = node._identities.account("a", by_owner=False)
    (tmp_path / "supervisor").mkdir()
    node.connect(SupervisorClient(tmp_path / "supervisor"))
    refusal = node._identities.account("a", by_owner=False)
    assert isinstance(refusal, str)
    assert "the system user daemon, who runs the scheduler on this machine" in refusal
    if os.geteuid() == 0:  # another mapping is as good as before
        assert isinstance(before, Account)
        assert isinstance(node._identities.account("b", by_owner=False), Account)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process as another user")
def test_the_kernel_names_the_user_whose_process_listens() -> None:
    for uid in (pwd.getpwnam("daemon").pw_uid, 0):
        words = [sys.executable, "-I", "-S", "-c", LISTENS, str(uid)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, cwd="/") as listener:
            assert listener.stdout is not None
            try:
                address = f"127.0.0.1:{int(listener.stdout.readline())}"
                assert uid_of_listener(address) == uid
            finally:
                listener.kill()
