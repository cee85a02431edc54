"""Job scripts on several nodes: two real agents on this machine, ranks on both, and everything that ends them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuyard.live.sdk import Client, Task
from tests.acceptance.live import Cluster, running_cluster
from tests.acceptance.waiting import until

GPUYARD = str(Path(sys.executable).with_name("gpuyard"))
SHAPE_4 = r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))    # 4: two nodes, rendezvous
head_ip=$(srun --nodes=1 --ntasks=1 -w "${nodes[0]}" hostname --ip-address)
srun --kill-on-bad-exit=1 -l torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 4 --rdzv_id "$SLURM_JOB_ID" \
  --rdzv_backend c10d --rdzv_endpoint "$head_ip:$((10000 + SLURM_JOB_ID % 50000))" train.py
"""
SHAPE_5 = r"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --gpus-per-task=1 --cpus-per-task=1 --mem-per-cpu=16M
export MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=29500
srun -u python -u train.py                                  # 5: a rank a GPU, as Lightning wants; then a chained job
sbatch --parsable --dependency=afterok:"$SLURM_JOB_ID" shape1.sh
"""
"""The shapes of job scripts found in public repositories, with CPUs and memory of a small machine."""
TORCHRUN = '#!/bin/sh\necho "torchrun $* on $GPUYARD_NODE_ID with $CUDA_VISIBLE_DEVICES"\n'
TRAIN = """import os, socket, sys
e = os.environ
socket.getaddrinfo(e["MASTER_ADDR"], int(e["MASTER_PORT"]))
names = "PROCID LOCALID NODEID NTASKS NTASKS_PER_NODE STEP_ID STEP_NUM_NODES STEP_TASKS_PER_NODE".split()
said = [*(e["SLURM_" + name] for name in names), str("RANK" in e), e["GPUYARD_NODE_ID"] + "/" + e["CUDA_VISIBLE_DEVICES"]]
sys.stdout.write(" ".join(said) + chr(10))  # at once: with -u print would write the end of the line by itself
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("two"), nodes=2, gpus=4) as made:
        programs = made.folder / "programs"
        programs.mkdir()
        (programs / "torchrun").write_text(TORCHRUN)
        (programs / "torchrun").chmod(0o755)
        (programs / "python").symlink_to("/usr/bin/python3")
        (made.folder / "train.py").write_text(TRAIN)
        yield made


def submitted(cluster: Cluster, text: str, name: str = "job.sh") -> Task:
    (cluster.folder / name).write_text(text)
    env = {key: value for key, value in os.environ.items() if not key.startswith("GPUYARD_")} | {
        "GPUYARD_SERVER": f"http://127.0.0.1:{cluster.http}",
        "PATH": f"{cluster.folder}/programs:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(cluster.folder / "config"),
        "WANDB_API_KEY": "hush",
    }
    done = subprocess.run(
        [GPUYARD, "sbatch", "--parsable", name],
        cwd=cluster.folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return cluster.client().task(done.stdout.strip())


def printed(client: Client, task: Task, node: str | None = None) -> str:
    return b"".join(client.logs(task, node=node)).decode()


def ended(cluster: Cluster, text: str) -> tuple[Task, list[str]]:
    task = cluster.client().wait(submitted(cluster, text), timeout=60)
    return task, printed(cluster.client(), task).splitlines()


def pids_in(lines: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)$", lines, re.MULTILINE)]


def runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


WAITING = """#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:1
srun bash -c 'echo pid $$; exec sleep 300'
"""


def two_ranks(cluster: Cluster, text: str = WAITING) -> tuple[Task, list[int]]:
    """A job with a rank on each node, and their process ids."""
    task = submitted(cluster, text)
    client = cluster.client()
    until(lambda: len(pids_in(printed(client, task))) == 2, 40, "both ranks run")
    return task, pids_in(printed(client, task))


def test_shape_4_two_nodes_with_a_rendezvous(cluster: Cluster) -> None:
    task, lines = ended(cluster, SHAPE_4)
    assert task.status == "success", lines
    address = subprocess.run(["hostname", "--ip-address"], capture_output=True, text=True, check=True).stdout.strip()
    words = (
        f"torchrun --nnodes 2 --nproc_per_node 4 --rdzv_id {task.number} --rdzv_backend c10d "
        f"--rdzv_endpoint {address}:{10000 + task.number % 50000} train.py"
    )
    nodes = sorted({gpu.partition("/")[0] for gpu in task.allocated_gpus})
    assert {line[: 3 + len(words)] for line in lines} == {f"0: {words}", f"1: {words}"}
    assert sorted(line.split(" on ")[1].split()[0] for line in lines) == nodes == ["node-1", "node-2"]
    assert {line.split(" with ")[1] for line in lines} == {"0,1,2,3"}


def test_shape_5_a_rank_for_each_gpu_and_a_chained_job(cluster: Cluster) -> None:
    (cluster.folder / "shape1.sh").write_text("#!/bin/bash\n#SBATCH -J next\necho second ${SLURM_NTASKS-none}\n")
    task, lines = ended(cluster, SHAPE_5)
    assert task.status == "success", lines
    said = sorted(line.split() for line in lines[:-1])
    assert [one[:5] for one in said] == [[str(rank), str(rank % 2), str(rank // 2), "4", "2"] for rank in range(4)]
    assert [one[5:9] for one in said] == [["0", "2", "2(x2)", "False"]] * 4
    assert sorted(one[9] for one in said) == sorted(re.sub(r"/\D*", "/", gpu) for gpu in task.allocated_gpus)
    chained = cluster.client().wait(lines[-1], timeout=60)
    assert (chained.name, chained.depends_on) == ("next", [task.id])
    assert printed(cluster.client(), chained) == "second none\n"


def test_the_highest_exit_code_counts_and_a_failing_rank_ends_the_others(cluster: Cluster) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -N 2 -n 4 -c 1 --gres=gpu:1\n"
        "echo folder $(dirname $GPUYARD_SHIMS)\nsrun bash -c 'exit $SLURM_PROCID'; echo code $?\n"
        "SECONDS=0; srun -K bash -c '[ $SLURM_PROCID = 3 ] && exit 7; exec sleep 300'; echo code $? $((SECONDS < 60))\n"
        "srun no-such-program; echo code $?\nsrun -N3 true; echo code $?\nsrun -w elsewhere true; echo code $?\n"
        "srun -n1 echo closed <&- >closed.txt 2>&1; cat closed.txt\nsrun -n1 bash -c 'kill -KILL $$'; exit $?\n"
    )
    task, lines = ended(cluster, text)
    assert (task.status, task.exit_code) == ("failed", 137)
    assert [line for line in lines if line.startswith("code")] == ["code 3", "code 143 1", "code 2", "code 1", "code 1"]
    said = "\n".join(lines)
    assert lines[0].startswith("folder /")
    assert not Path(lines[0].removeprefix("folder ")).exists()
    assert "task 3: Exited with exit code 7" in said
    assert "\nclosed\n" in said
    assert "srun: the step requests 3 nodes, and the job has 2" in said
    assert "srun: elsewhere is no node of the job; its nodes are " in said
    assert "task 0: Killed" in said


def test_input_files_signals_and_steps_at_the_same_time(cluster: Cluster) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -N 2 --gres=gpu:2\nulimit -n 200; export MINE=mine\n"
        "seq 100000 | srun -l sh -c 'cat | tail -n 1; ulimit -n; echo $MINE $WANDB_API_KEY' | sort\n"
        "srun -o out-%j-%t.txt -e err-%s.txt sh -c 'echo out $SLURM_PROCID; echo err >&2'\n"
        "cat out-*-0.txt out-*-1.txt\n"
        "for i in 1 2 3; do srun --gres=gpu:1 sh -c 'echo gpu $SLURM_PROCID $CUDA_VISIBLE_DEVICES $(date +%s%N); sleep 0.3; "
        "echo end $SLURM_PROCID $CUDA_VISIBLE_DEVICES $(date +%s%N)' & done; wait\n"
        "srun sh -c 'trap \"echo saved; exit 9\" USR1; echo ready; while :; do sleep 0.05; done' >signals.txt &\n"
        'until [ "$(grep -c ready signals.txt)" = 2 ]; do sleep 0.05; done; kill -USR1 $!; wait $!; echo code $?; cat signals.txt\n'
    )
    task, lines = ended(cluster, text)
    assert task.status == "success", lines
    assert lines[:6] == ["0: 100000", "0: 200", "0: mine hush", "1: 200", "1: mine hush", "out 0"]
    assert lines[6] == "out 1"
    spans = [line.split() for line in lines if line.split()[0] in {"gpu", "end"}]
    assert len(spans) == 12
    for rank in "01":  # a GPU belongs to one step at a time
        for gpu in {one[2] for one in spans}:
            events = [one[0] for one in sorted(spans, key=lambda one: int(one[3])) if one[1:3] == [rank, gpu]]
            assert events == ["gpu", "end"] * (len(events) // 2)
    assert "code 9" in lines
    assert lines.count("saved") == 2


def test_much_output_of_all_ranks_arrives_whole_and_in_lines(cluster: Cluster) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -N 2 -n 4 -c 1 --gres=gpu:1\nsrun -l seq 50000 >all.txt\nsrun seq 1000000 | head -n 1\n"
    )
    task, lines = ended(cluster, text)
    assert task.status == "success", lines
    assert lines == ["1"]
    every = (cluster.folder / "all.txt").read_text().splitlines()
    for rank in range(4):
        own = [line for line in every if line.startswith(f"{rank}: ")]
        assert own == [f"{rank}: {number}" for number in range(1, 50001)]


def test_a_cancelled_job_ends_all_ranks_which_can_save(cluster: Cluster) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -N 2 --gres=gpu:1\n"
        "srun bash -c 'trap \"echo saving; sleep 0.5; echo saved; exit 0\" TERM; echo pid $$; while :; do sleep 0.1; done' &\n"
        "trap : TERM; wait; wait; echo script\n"
    )
    task, pids = two_ranks(cluster, text)
    cluster.client().cancel(task)
    over = cluster.client().wait(task, timeout=60)
    assert over.status == "cancelled"
    lines = printed(cluster.client(), over).splitlines()
    assert (lines.count("saving"), lines.count("saved"), lines[-1]) == (2, 2, "script")  # each rank was told once
    until(lambda: not any(map(runs, pids)), what="the ranks are gone")


def test_steps_left_in_the_background_end_with_the_script(cluster: Cluster) -> None:
    text = WAITING.replace("300'", "300' &\nuntil [ -e go ]; do sleep 0.05; done; exit 4")
    (cluster.folder / "go").unlink(missing_ok=True)
    task, pids = two_ranks(cluster, text)
    (cluster.folder / "go").touch()
    over = cluster.client().wait(task, timeout=60)
    assert (over.status, over.exit_code) == ("failed", 4)
    assert not any(map(runs, pids))


def test_steps_survive_a_restart_of_both_agents_and_of_the_scheduler(cluster: Cluster) -> None:
    text = WAITING.replace("exec sleep 300", "until [ -e end ]; do sleep 0.05; done; echo over")
    (cluster.folder / "end").unlink(missing_ok=True)
    task, pids = two_ranks(cluster, text)
    for name in ("node-1", "node-2"):
        cluster.kill(cluster.agents[name])
    cluster.kill_server()
    cluster.start_server()
    for name in ("node-1", "node-2"):
        cluster.start_agent(name)
    client = cluster.ready(2)
    assert all(map(runs, pids))
    (cluster.folder / "end").touch()
    over = client.wait(task, timeout=60)
    assert (over.status, over.attempts) == ("success", 1)
    assert printed(client, over).count("over") == 2


def helper_of(task: Task, program: str) -> int:
    """The process id of the helper of a job on a node."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if f"gpuyard-job-{task.number}.".encode() in words and f"\0{program}\0".encode() in words:
                return int(entry.name)
    raise AssertionError(f"{program} of {task.id} does not run")


@pytest.mark.parametrize("program", ["member", "hub"])
def test_the_death_of_a_helper_ends_the_job_with_all_its_ranks(cluster: Cluster, program: str) -> None:
    task, pids = two_ranks(cluster)
    os.kill(helper_of(task, program), 9)
    over = cluster.client().wait(task, timeout=60)
    assert over.status == "failed"
    until(lambda: not any(map(runs, pids)), what="the ranks are gone")


def test_a_lost_node_starts_the_job_again_and_no_old_rank_stays(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=2, gpus=1) as cluster:
        task, pids = two_ranks(cluster)
        first = cluster.client().task(task.id).node_id
        cluster.kill_node("node-2" if first == "node-1" else "node-1")
        until(lambda: not any(map(runs, pids)), 60, "all ranks are gone")
        cluster.start_agent("node-2" if first == "node-1" else "node-1", 1)
        client = cluster.client()
        until(
            lambda: client.task(task.id).attempts == 2 and len(pids_in(printed(client, task))) == 2, 60, "ranks again"
        )


def test_nobody_without_the_secret_of_the_job_is_served(cluster: Cluster) -> None:
    from asyncio import open_connection, run, sleep

    from gpuyard.cli.slurm import steps

    task, pids = two_ranks(cluster)
    words = Path(f"/proc/{helper_of(task, 'hub')}/environ").read_bytes().split(b"\0")
    env = dict(word.decode().split("=", 1) for word in words if word)

    async def knocks(secret: str, attempt: str) -> bool:
        reader, writer = await open_connection("127.0.0.1", int(env["MASTER_PORT"]), ssl=steps.tls(False))
        key = steps.key_of(secret, str(task.number), attempt)
        try:
            return await steps.proved(reader, writer, key, False)
        finally:
            writer.transport.abort()
            await sleep(0)

    assert run(knocks(env["SBATCH_STEPS_SECRET"], "1"))
    assert not run(knocks(env["SBATCH_STEPS_SECRET"], "2"))
    assert not run(knocks("0" * 64, "1"))
    assert "SBATCH_STEPS_SECRET" not in Path(f"/proc/{pids[0]}/environ").read_text()
    assert env["SBATCH_STEPS_SECRET"] not in str(cluster.client().task(task.id))
    cluster.client().cancel(task)
    cluster.client().wait(task, timeout=60)


def test_a_clone_of_a_job_has_a_secret_of_its_own(cluster: Cluster) -> None:
    first, _ = ended(cluster, "#!/bin/bash\n#SBATCH -N 2 -n 2\nsrun -l echo here | sort\n")
    client = cluster.client()
    done = subprocess.run(
        [GPUYARD, "clone", first.id, "--secret", "WANDB_API_KEY", "--json"],
        env=os.environ | {"GPUYARD_SERVER": f"http://127.0.0.1:{cluster.http}", "WANDB_API_KEY": "hush"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    again = client.wait(json.loads(done.stdout)["id"], timeout=60)
    assert (again.status, printed(client, again)) == ("success", "0: here\n1: here\n")
