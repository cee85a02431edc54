"""The kind name of a task: equal for the tasks of a sweep, cheap, and defined for everything that can be submitted."""

from shlex import quote
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.domain.kind_name import LONGEST_NAME, kind_name


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("train-lr0.1-seed3", "train-lr0.01-seed12", "train-lr1e-4-seed0"), "train-lr#-seed"),
        (("lr=0.1,opt=adam,seed=3", "lr=1e-3,opt=sgd,seed=4"), "lr=#,opt=#,seed"),
        (("trial", "trial-2", "trial_17", "trial 3", "trial (4)"), "trial"),
        (("run-a3f9c2d", "run-0b1c2d3e4f", "run-A3F9C2D"), "run"),
        (("3f2b8c1e-aaaa-bbbb-cccc-0123456789ab", "17", "2026-11-19", "-"), "#"),
        (("eval-2026-11-19-part3", "eval-2026-11-20-part12"), "eval-#-part"),
        (("日本3", "日本٤"), "日本"),
    ],
)
def test_names_of_a_sweep_have_one_kind(names: tuple[str, ...], kind: str) -> None:
    assert {kind_name(name, "true") for name in names} == {kind}


@pytest.mark.parametrize(
    ("one", "other"), [("train", "eval"), ("train-adam", "train-sgd"), ("facade", "decade"), ("a-1-x", "a-1-y")]
)
def test_names_that_differ_in_words_have_different_kinds(one: str, other: str) -> None:
    assert kind_name(one, None) != kind_name(other, None)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("python train.py --lr 0.1 --seed 3", "python train.py"),
        (("python", "train.py", "--lr", "0.1"), "python train.py"),
        ("/opt/conda/bin/python3.11 -u -W ignore src/train.py lr=3", "python src/train.py"),
        ("python -m pkg.mod --x 1", "python -m pkg.mod"),
        ("python -c 'print(1)'", "python -c"),
        ("python", "python"),
        ("env A=1 -u B python x.py", "python x.py"),
        ("CUDA_VISIBLE_DEVICES=0 KEY='a b' python x.py", "python x.py"),
        ("/usr/bin/env python x.py", "python x.py"),
        ("nohup nice -n 5 timeout -s KILL 10m python x.py", "python x.py"),
        ("conda run -n work python x.py", "python x.py"),
        ("srun -n 4 python x.py", "python x.py"),
        ("torchrun --nproc_per_node 2 --rdzv_backend c10d train.py --lr 1", "torchrun train.py"),
        ("torchrun --standalone -m pkg.mod 3", "torchrun -m pkg.mod"),
        ("accelerate launch --config_file a.yaml scripts/fit.py", "accelerate scripts/fit.py"),
        ('bash -c "cd src && python x.py --seed 1"', "python x.py"),
        (("bash", "-lc", "source env.sh; exec ./run_17.sh 3"), "run_#.sh"),
        ("bash jobs/run_17.sh 3", "bash jobs/run_#.sh"),
        ("for i in 1 2 3; do python x.py $i; done", "python x.py"),
        ("if [ -f done ]; then exit; fi; ./solve 3", "solve"),
        ("module load cuda\nconda activate work\npython x.py | tee log", "python x.py"),
        ("yolo train data=coco.yaml", "yolo train"),
        ("./a.out 3 4", "a.out"),
        ("git pull && python x.py", "python x.py"),
        ("nvidia-smi; hostname; rm -rf out; python x.py", "python x.py"),
        ("cat list | python x.py", "python x.py"),
        ('eval "$(conda shell.bash hook)" && conda activate work && python x.py', "python x.py"),
        ("cp -r /data /tmp && rsync -a a b", "cp"),
        ("#!/bin/bash\n# why\npython x.py # because", "python x.py"),
        ("apptainer exec --nv -B /data image.sif python x.py", "python x.py"),
        ("singularity exec docker://team/image bash -c 'python x.py'", "python x.py"),
        ("singularity run image.sif --seed 3", "singularity image.sif"),
        ("python -m torch.distributed.run --nproc_per_node 2 x.py --lr 3", "python -m torch.distributed.run x.py"),
        ("python -m torch.distributed.run --standalone -m pkg.mod", "python -m torch.distributed.run -m pkg.mod"),
    ],
)
def test_a_task_without_a_name_has_the_kind_of_its_program_and_script(
    command: str | tuple[str, ...], kind: str
) -> None:
    assert kind_name("", command) == kind


@pytest.mark.parametrize("command", [None, "true", ":", "cd /tmp", "A=1", "", "   ", "\\", '"', (), ("",)])
def test_leases_and_commands_that_run_no_program_have_no_kind(command: str | tuple[str, ...] | None) -> None:
    assert kind_name("", command) == ""


def test_the_name_of_a_task_goes_before_its_command() -> None:
    assert kind_name("trial-3", "python x.py") == kind_name("trial-4", None) == "trial"


@pytest.mark.parametrize("name", ["17", "2026-11-19", "0b1c2d3e4f"])
def test_a_name_of_which_nothing_is_left_says_less_than_the_command(name: str) -> None:
    assert kind_name(name, "python x.py --seed 3") == "python x.py"
    assert kind_name(name, None) == "#"


@pytest.mark.parametrize(
    "command",
    ["TOKEN=hunter2 python x.py", "python x.py --token hunter2", "env TOKEN=hunter2 sh -c 'KEY=hunter2 python x.py'"],
)
def test_values_of_options_and_variables_are_not_in_a_kind(command: str) -> None:
    assert kind_name("", command) == "python x.py"


@pytest.mark.parametrize(("shells", "kind"), [(1, "python x.py"), (3, "python x.py"), (5, "sh")])
def test_a_few_shells_may_be_nested(shells: int, kind: str) -> None:
    nested = "python x.py"
    for _ in range(shells):
        nested = f"sh -c {quote(nested)}"
    assert kind_name("", nested) == kind


@pytest.mark.parametrize(
    "command",
    [
        "x " * 100_000, "'" * 100_000, '"' + "\\a" * 100_000, "\\" * 100_001, "A=1 " * 50_000, "((((" * 50_000, "{" * 99_999,
        "env " * 50_000, "-m " * 50_000, ("a" * 1_000_000,), ("a",) * 1_000_000, ("sh", "-c", "sh -c '" * 100_000), "\0\ud800",
        "a" * 100_000 + ".py", "python " + "-W " * 100_000, "# " * 100_000, "git;" * 100_000,
        "apptainer exec a.sif " * 10_000, ("apptainer", "exec", "a.sif") * 10_000,
    ],
)  # fmt: skip
def test_no_command_takes_long(command: str | tuple[str, ...]) -> None:
    before = process_time()
    assert len(kind_name("", command)) <= 2 * LONGEST_NAME + 4
    assert process_time() - before < 0.1


@pytest.mark.parametrize(
    "name", ["1" * 100_000, "a1" * 50_000, "=1" * 50_000, "#_" * 50_000, "1e" * 50_000, "f0" * 50_000]
)
def test_no_name_takes_long(name: str) -> None:
    before = process_time()
    assert 0 < len(kind_name(name, None)) <= LONGEST_NAME
    assert process_time() - before < 0.1


@given(name=st.text(), command=st.one_of(st.none(), st.text(), st.lists(st.text()).map(tuple)))
def test_every_task_has_the_same_kind_each_time(name: str, command: str | tuple[str, ...] | None) -> None:
    assert kind_name(name, command) == kind_name(name, command)
    if name and kind_name(name, None) != "#":
        assert kind_name(name, command) == kind_name(name, None)
