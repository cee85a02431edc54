"""Nodes booted by an administrator's commands."""

import os
from pathlib import Path

import pytest

from gpuyard.core.domain.pool import PoolNodeState
from gpuyard.core.domain.values import NodeId
from gpuyard.live.pool.command import CommandProvider, PoolDamaged
from tests.acceptance.waiting import until

NODE = NodeId("a100-0001")


def pool(folder: Path, boot: str = "true", release: str = "true") -> CommandProvider:
    return CommandProvider(folder / "pool", "a100", boot, release)


def becomes(provider: CommandProvider, state: PoolNodeState) -> None:
    until(lambda: [it.state for it in provider.nodes()] == [state], what=str(state))


def test_commands_receive_the_node_and_its_kind_and_their_output_is_kept(tmp_path: Path) -> None:
    provider = pool(tmp_path, "echo boots {node} of {kind}; echo badly >&2", "echo releases {node}")
    provider.boot([NODE])
    becomes(provider, PoolNodeState.READY)
    provider.release([NODE])
    becomes(provider, PoolNodeState.GONE)
    said = (tmp_path / "pool" / "a100-0001.log").read_text()
    assert said.splitlines() == ["boots a100-0001 of a100", "badly", "releases a100-0001"]


def test_a_restarted_scheduler_continues_with_what_was_requested(tmp_path: Path) -> None:
    provider = pool(tmp_path)
    provider.boot([NODE])
    becomes(provider, PoolNodeState.READY)
    assert [it.node for it in pool(tmp_path).nodes()] == [NODE]
    provider.release([NODE])
    becomes(provider, PoolNodeState.GONE)
    provider.release([NODE])
    assert list(pool(tmp_path).nodes()) == []


def test_the_result_of_a_boot_survives_a_restart(tmp_path: Path) -> None:
    provider = pool(tmp_path, boot="false")
    provider.boot([NODE])
    becomes(provider, PoolNodeState.FAILED)
    assert [it.state for it in pool(tmp_path).nodes()] == [PoolNodeState.FAILED]


def test_a_boot_whose_end_was_not_seen_counts_as_done(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    provider = pool(tmp_path, f"read line < {gate}")
    provider.boot([NODE])
    assert [it.state for it in provider.nodes()] == [PoolNodeState.BOOTING]
    again = pool(tmp_path)
    becomes(again, PoolNodeState.READY)
    gate.write_text("go\n")
    becomes(provider, PoolNodeState.READY)


def test_a_release_whose_end_was_not_seen_is_run_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    provider = pool(tmp_path, release=f"read line < {gate}")
    provider.boot([NODE])
    becomes(provider, PoolNodeState.READY)
    provider.release([NODE])
    again = pool(tmp_path, release="echo once more")
    becomes(again, PoolNodeState.GONE)
    assert (tmp_path / "pool" / "a100-0001.log").read_text() == "once more\n"
    gate.write_text("go\n")
    becomes(provider, PoolNodeState.GONE)


def test_a_release_is_run_until_it_works(tmp_path: Path) -> None:
    fails_once = f"test -e {tmp_path}/tried && exit 0; touch {tmp_path}/tried; exit 1"
    provider = pool(tmp_path, release=fails_once)
    provider.boot([NODE])
    becomes(provider, PoolNodeState.READY)
    provider.release([NODE])
    becomes(provider, PoolNodeState.GONE)


def test_a_running_boot_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    provider = pool(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    provider.boot([NODE])
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    provider.release([NODE])
    becomes(provider, PoolNodeState.GONE)
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3])


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "nodes.json").write_text("{")
    with pytest.raises(PoolDamaged, match=r"nodes\.json cannot be read .* move the file away\."):
        pool(tmp_path)
