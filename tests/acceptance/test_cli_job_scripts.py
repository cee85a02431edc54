"""Sweeps, task files and job scripts against a real cluster: scheduler, agent and tasks are real processes."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.live.sdk import Task
from tests.acceptance.cli_cluster import CliCluster
from tests.acceptance.waiting import until

SHAPE_1 = r"""#!/bin/bash
#SBATCH --job-name=mnist            # 1: one GPU, own log files; a comment behind the value
#SBATCH --partition=gpu
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=1
#SBATCH --mem=16MB
#SBATCH --time=1-00:00:00
#SBATCH --output=logs/%x_%j.out
#SBATCH --error=logs/%x_%j.err
#SBATCH --mail-type=END,FAIL --mail-user=me@example.org
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
[ -d .venv ] && source .venv/bin/activate
echo "job $SLURM_JOB_ID on $(hostname), GPUs ${CUDA_VISIBLE_DEVICES:-none}"
python train.py --workers "${SLURM_CPUS_PER_TASK:-1}" --out "runs/$SLURM_JOB_ID"
"""
SHAPE_2 = r"""#!/bin/bash -l
#SBATCH -J sweep -a 1-6%2 -c 1 -t 02:00:00
#SBATCH -o logs/%A_%a.log
#SBATCH --gres=gpu:a100:1
LR=(1e-2 1e-3 1e-4); i=$((SLURM_ARRAY_TASK_ID - 1))       # 2: array over values and a list file
python train.py --lr "${LR[i % 3]}" --seed $((i / 3)) $(sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt)
"""
SHAPE_3 = r"""#!/usr/bin/env bash
#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=2 --exclusive
#SBATCH --mem=0 --constraint="a100|h100"
#SBATCH --time 12:00:00
#SBATCH --requeue --open-mode=append --signal=B:USR1@120 --out=ddp-%j.log
command -v module >/dev/null && module load cuda            # 3: one node, torchrun, argument, requeue before the limit
trap 'touch checkpoint.now; scontrol requeue "$SLURM_JOB_ID"' USR1
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE))
torchrun --standalone --nproc_per_node="$SLURM_GPUS_ON_NODE" train.py --config "${1:?config}" & wait
"""
"""The shapes of job scripts found in public repositories, with CPUs and memory of a small machine."""
STUB = '#!/bin/sh\necho "$(basename "$0")" "$@" >&1\necho "warning of $1" >&2\n'
"""Instead of python and torchrun."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    made = CliCluster(tmp_path_factory.mktemp("cluster"))
    programs = made.folder / "programs"
    programs.mkdir()
    for name in ("python", "torchrun"):
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    made.env["PATH"] = f"{programs}{os.pathsep}{made.env['PATH']}"
    made.env["BASH_FUNC_python%%"] = '() { echo python "$@"; echo warning of $1 >&2; }'  # a login shell sets PATH again
    try:
        made.up("--virtual-gpus", "4:A100:80")
        yield made
    finally:
        made.end()


def script(cluster: CliCluster, name: str, text: str) -> str:
    (cluster.folder / name).write_text(text)
    return name


def ended(cluster: CliCluster, *words: str, command: str = "sbatch") -> Task:
    """The task of a job script after its end."""
    said = cluster.does(command, *words)
    return cluster.client().wait(said.split()[-1], timeout=60)


def printed(cluster: CliCluster, task: Task) -> str:
    return b"".join(cluster.client().logs(task)).decode()


def test_shape_1_one_gpu_with_its_own_output_files(cluster: CliCluster) -> None:
    done = cluster.call("submit", script(cluster, "shape1.sh", SHAPE_1))
    assert "1 GPU, 1 CPU, 16 MiB, time limit 1d" in done.stderr
    assert "--partition has no effect" in done.stderr
    task = cluster.client().wait(done.stdout.strip(), timeout=60)
    assert (task.status, task.name, task.timeout) == ("success", "mnist", 86400)
    out = (cluster.folder / f"logs/mnist_{task.number}.out").read_text()
    assert out.splitlines()[0] == f"job {task.number} on {os.uname().nodename}, GPUs {task.allocated_gpus[0][-1]}"
    assert out.splitlines()[1] == f"python train.py --workers 1 --out runs/{task.number}"
    assert (cluster.folder / f"logs/mnist_{task.number}.err").read_text() == "warning of train.py\n"
    assert sorted(printed(cluster, task).splitlines()) == sorted([*out.splitlines(), "warning of train.py"])


def test_shape_2_an_array_over_values_and_a_file(cluster: CliCluster) -> None:
    (cluster.folder / "params.txt").write_text("".join(f"--extra {number}\n" for number in range(1, 7)))
    done = cluster.call("sbatch", "--parsable", script(cluster, "shape2.sh", SHAPE_2))
    first = int(done.stdout)
    tasks = cluster.client().wait([str(first + number) for number in range(6)], timeout=60)
    assert [task.status for task in tasks] == ["success"] * 6
    for number, task in enumerate(tasks):
        log = (cluster.folder / f"logs/{first}_{number + 1}.log").read_text()
        rate = ("1e-2", "1e-3", "1e-4")[number % 3]
        assert f"python train.py --lr {rate} --seed {number // 3} --extra {number + 1}\n" in log
        assert log == printed(cluster, task)


def test_shape_3_one_node_with_an_argument(cluster: CliCluster) -> None:
    name = script(cluster, "shape3.sh", SHAPE_3)
    task = ended(cluster, name, "big.yaml")
    assert (task.status, task.gpu_count, task.cpu_count, task.preemption) == ("success", 4, 2, "requeue")
    log = (cluster.folder / f"ddp-{task.number}.log").read_text()
    assert "torchrun --standalone --nproc_per_node=4 train.py --config big.yaml\n" in log
    without = ended(cluster, name)
    assert "1: config" in (cluster.folder / f"ddp-{without.number}.log").read_text()


def test_shape_3_is_signalled_before_its_time_limit(cluster: CliCluster) -> None:
    text = "#!/bin/bash\n#SBATCH -t 1 --signal=B:USR1@58 -J soon\ntrap 'echo saved; exit 7' USR1\nsleep 50 & wait\n"
    task = ended(cluster, script(cluster, "soon.sh", text))
    assert (task.exit_code, printed(cluster, task)) == (7, "saved\n")


def test_a_script_submits_and_cancels_other_jobs(cluster: CliCluster) -> None:
    text = (
        "#!/bin/bash\nnext=$(sbatch --parsable --dependency=afterok:$SLURM_JOB_ID --wrap 'echo second')\n"
        "squeue | grep -c task-$next; scancel $next; sbatch --wait --wrap 'exit 3'; echo code $?; scancel -u me; echo code $?\n"
    )
    task = ended(cluster, script(cluster, "chain.sh", text))
    lines = printed(cluster, task).splitlines()
    assert (lines[0], lines[-3], lines[-1]) == ("1", "code 3", "code 1"), lines
    cancelled = cluster.client().task(str(task.number + 1))
    assert (cancelled.status, cancelled.depends_on) == ("cancelled", [task.id])


def test_a_script_is_copied_and_finds_the_variables_of_slurm(cluster: CliCluster) -> None:
    text = "#!/bin/bash\n#SBATCH -n2 -J 'a b'\nset | grep ^SLURM | sort; echo args: \"$@\"; echo $0; pwd; echo $MINE $TOKEN; exit 3\n"
    name = script(cluster, "vars.sh", text)
    done = cluster.call(
        "sbatch", name, "x y", "*", env={"MINE": "m", "TOKEN": "hush", "SLURM_NTASKS": "99", "RANK": "7"}
    )
    task = cluster.client().wait(done.stdout.split()[-1], timeout=60)
    said = printed(cluster, task)
    found = dict(line.split("=", 1) for line in said.splitlines() if line.startswith("SLURM_"))
    assert (task.exit_code, found["SLURM_JOB_ID"], found["SLURM_NTASKS"]) == (3, str(task.number), "2")
    assert (found["SLURM_JOB_NAME"], found["SLURM_SUBMIT_DIR"]) == ("'a b'", str(cluster.folder))
    assert not {"SLURM_CPUS_PER_TASK", "SLURM_GPUS_ON_NODE", "SLURM_ARRAY_TASK_ID"} & found.keys()
    assert "args: x y *\n" in said
    assert f"/vars.sh\n{cluster.folder}\nm hush\n" in said
    assert "hush" not in cluster.does("show", task.id, "--json")
    assert not list(Path("/tmp").glob(f"gpuyard-job-{task.number}.*"))


def test_steps_on_one_node_run_with_their_own_ranks_and_gpus(cluster: CliCluster) -> None:
    text = (
        "#!/bin/bash -l\n#SBATCH --ntasks=2 --gpus-per-task=1 -c 1\n"
        "srun -l bash -c 'echo $SLURM_PROCID/$SLURM_NTASKS $CUDA_VISIBLE_DEVICES' | sort\n"
        "srun -n1 --gres=gpu:1 bash -c 'echo alone $CUDA_VISIBLE_DEVICES; sleep 0.5' & "
        "srun -n1 --gres=gpu:1 bash -c 'echo alone $CUDA_VISIBLE_DEVICES; sleep 0.5' & wait\n"
        "scontrol show hostnames\nsrun -n 2 sh -c 'exit $SLURM_PROCID'; echo code $?\n"
        "srun -K -n 2 sh -c '[ $SLURM_PROCID = 0 ] && exit 5; sleep 60'; echo code $?\nsrun --container-image=x true\n"
    )
    task = ended(cluster, script(cluster, "steps.sh", text))
    lines = printed(cluster, task).splitlines()
    gpus = sorted(place[-1] for place in task.allocated_gpus)
    assert [line[:6] for line in lines[:2]] == ["0: 0/2", "1: 1/2"]
    assert sorted(line[-1] for line in lines[:2]) == gpus
    assert sorted(line[-1] for line in lines[2:4]) == gpus
    assert lines[4:6] == [os.uname().nodename, "code 1"]
    assert "code 143" in lines  # one task failed, the other one was ended with it
    assert "containers are not supported" in lines[-1]


def test_a_dependency_on_an_array_waits_for_all_its_tasks(cluster: CliCluster) -> None:
    first = cluster.does("sbatch", "--parsable", "-a", "0-2", "--wrap", "sleep 0.3").strip()
    last = ended(cluster, f"--dependency=afterok:{first}", "--wrap", "echo done")
    assert printed(cluster, last) == "done\n"
    assert last.depends_on == [f"task-{int(first) + number}" for number in range(3)]


def test_sbatch_waits_and_reads_standard_input(cluster: CliCluster) -> None:
    text = "#!/bin/sh\n#SBATCH -J piped\necho $SLURM_JOB_NAME; exit 4\n"
    done = cluster.call("sbatch", "--wait", "-", given=text)
    assert (done.returncode, done.stdout.startswith("Submitted batch job ")) == (4, True)


def test_a_cancelled_script_can_save_what_it_writes(cluster: CliCluster) -> None:
    text = "#!/bin/bash\n#SBATCH -o saved-%j.txt\ntrap 'echo saving; sleep 0.3; echo saved; exit 0' TERM\necho ready\nsleep 60 & wait\n"
    said = cluster.does("sbatch", "--parsable", script(cluster, "save.sh", text)).strip()
    until(lambda: "ready" in printed(cluster, cluster.client().task(said)), what="the script is ready")
    cluster.does("cancel", said)
    cluster.client().wait(said, timeout=60)
    assert (cluster.folder / f"saved-{said}.txt").read_text() == "ready\nsaving\nsaved\n"


def test_what_a_script_leaves_in_the_background_does_not_keep_the_job(cluster: CliCluster) -> None:
    text = "#!/bin/bash\n#SBATCH -o left-%j.txt -e left-%j.err\nsleep 300 &\necho over\n"
    task = ended(cluster, script(cluster, "left.sh", text))
    assert (cluster.folder / f"left-{task.number}.txt").read_text() == "over\n"
    assert task.status == "success"


def test_an_executable_without_directives_is_an_ordinary_command(cluster: CliCluster) -> None:
    path = cluster.folder / "plain.sh"
    path.write_text("#!/bin/sh\necho plain $1 ${SLURM_JOB_ID-none}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    task = ended(cluster, "--", "./plain.sh", "x", command="submit")
    assert printed(cluster, task) == "plain x none\n"


def test_run_says_that_it_does_not_read_directives(cluster: CliCluster) -> None:
    path = cluster.folder / "run.sh"
    path.write_text("#!/bin/sh\n#SBATCH -n 4\necho ${SLURM_NTASKS-none}\n")
    path.chmod(0o755)
    done = cluster.call("run", "./run.sh")
    assert (done.returncode, done.stdout) == (0, "none\n")
    assert "has #SBATCH lines" in done.stderr


def test_a_sweep_over_a_job_script(cluster: CliCluster) -> None:
    name = script(cluster, "swept.sh", "#!/bin/bash\n#SBATCH -J try\necho $1 $GPUYARD_PARAM_SEED\n")
    said = cluster.does("submit", "--sweep", "lr=a,b", "--sweep", "seed=1", name, "{lr}")
    assert outputs(cluster, said) == ["a 1\n", "b 1\n"]
    assert cluster.client().task(said.split()[0]).name == "try[lr=a,seed=1]"


def outputs(cluster: CliCluster, said: str) -> list[str]:
    """What the tasks of these ids print until they end; all must succeed."""
    client = cluster.client()
    tasks = client.wait(said.split(), timeout=60)
    printed = [b"".join(client.logs(task)).decode() for task in tasks]
    assert [task.status for task in tasks] == ["success"] * len(tasks), printed
    return printed


def test_every_task_of_a_sweep_finds_its_values(cluster: CliCluster) -> None:
    words = (
        "submit",
        "--sweep",
        "lr=1e-3,it's",
        "--sweep",
        "seed=0..1",
        "--shell",
        "echo {lr} {seed} $GPUYARD_PARAM_LR",
    )
    said = cluster.does(*words)
    assert outputs(cluster, said) == ["1e-3 0 1e-3\n", "1e-3 1 1e-3\n", "it's 0 it's\n", "it's 1 it's\n"]
    assert cluster.client().task(said.split()[0]).name == "echo[lr=1e-3,seed=0]"


def test_a_sweep_of_the_python_client(cluster: CliCluster) -> None:
    tasks = cluster.client().sweep(["echo", "{args}"], {"lr": [1e-3], "seed": range(2)}, gpus=1, timeout="1m")
    assert outputs(cluster, " ".join(task.id for task in tasks)) == ["--lr 0.001 --seed 0\n", "--lr 0.001 --seed 1\n"]


def test_a_sweep_is_accepted_as_a_whole_or_not_at_all(cluster: CliCluster) -> None:
    before = cluster.client().page(limit=1).tasks[0].number
    done = cluster.call("submit", "--priority", "500", "--sweep", "i=0..5", "--", "echo", "{i}")
    assert done.returncode == 1
    assert "--priority" in done.stderr
    assert cluster.client().page(limit=1).tasks[0].number == before


def test_a_dry_run_says_where_the_first_task_would_start(cluster: CliCluster) -> None:
    said = cluster.does("submit", "-g", "2", "--dry-run", "--sweep", "i=0..1", "--", "echo", "{i}")
    first, second, place = said.splitlines()
    assert (first, second) == ("echo[i=0]  echo 0", "echo[i=1]  echo 1")
    assert place.startswith("The first would start now on ")


def test_a_task_file_with_dependencies_by_name(cluster: CliCluster) -> None:
    (cluster.folder / "tasks.yaml").write_text("""
defaults: {gpus: 1, timeout: 1m}
tasks:
  - {name: report, command: cat out-1 out-2, depends_on: part, gpus: 0, cpu_count: 1}
  - {name: part, command: "cat in > out-{i}; echo {i} >> out-{i}", sweep: {i: 1..2}, depends_on: prepare}
  - {name: prepare, command: [sh, -c, echo begin > in]}
""")
    said = cluster.does("submit", "tasks.yaml")
    assert outputs(cluster, said) == ["", "", "", "begin\n1\nbegin\n2\n"]
    assert cluster.does("submit", "-n", "piped", "-", given="command: echo hi\ncpu_count: 1\n").startswith("task-")


def test_a_wish_that_cannot_come_true_is_reported_at_once(cluster: CliCluster) -> None:
    for words in (("-m", "rtx5090"), ("--gpu-memory", "141G"), ("-g", "9"), ("-g", "A10")):
        done = cluster.call("submit", *words, "--", "true")
        assert (done.returncode, done.stderr.startswith(f"gpuyard: {done.stdout.strip()} waits.")) == (0, True), words
        cluster.does("cancel", done.stdout.strip())
    assert cluster.call("submit", "-g", "nvidia_a100:1", "--gpu-memory", "80G", "--", "true").stderr == ""
    done = cluster.call("sbatch", "--gres=gpu:v100:1", "--wrap", "true")
    assert "No node has a GPU of model v100" in done.stderr
