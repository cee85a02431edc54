"""Programs of a folder: scripts, shell and make, and the files they meet in."""

import os
from pathlib import Path
from textwrap import dedent

import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.analysis import makefile, shell
from gpuyard.learn.analysis.reading import analyze
from tests.unit.learn.analysis.reading import Read, folder_of

PREPARE = """
import argparse
import numpy as np
parser = argparse.ArgumentParser()
parser.add_argument("--out", default="data.npz")
args = parser.parse_args()
np.savez(args.out, x=[1])
"""
TRAIN = """
import argparse
import numpy as np
import torch

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data.npz")
    parser.add_argument("--model", default="model.pt")
    args = parser.parse_args()
    x = np.load(args.data)
    loss = torch.ones(1, requires_grad=True)
    loss.backward()
    torch.save(loss, args.model)

if __name__ == "__main__":
    main()
"""
JUDGE = "import torch\nmodel = torch.load('model.pt')\nwith torch.no_grad():\n    model(1)\n"


def test_scripts_meet_in_the_files_they_write_and_read(tmp_path: Path) -> None:
    read = folder_of(tmp_path, judge_py=JUDGE, train_py=TRAIN, prepare_py=PREPARE, tools_py="def f(): pass\n")
    assert read.graph.levels == (("prepare",), ("train",), ("judge",))
    assert read.why("train", "prepare") == "file data.npz"
    assert [task.kind for task in read.graph.tasks] == ["inference", "data", "training"]


def test_a_shell_script_says_how_its_programs_are_called(tmp_path: Path) -> None:
    read = folder_of(
        tmp_path,
        prepare_py=PREPARE,
        train_py=TRAIN,
        run_sh="""
        #!/bin/bash
        set -e
        OUT=work
        mkdir -p $OUT
        python prepare.py --out $OUT/a.npz
        python prepare.py --out "${OUT}/b.npz"
        torchrun --nproc_per_node=4 --nnodes 2 train.py --data $OUT/a.npz \\
            --model a.pt
        CUDA_VISIBLE_DEVICES=0,1 python train.py --data $OUT/b.npz --model b.pt > log.txt 2>&1 &
        wait
        """,
    )
    assert read.graph.levels == (("prepare", "prepare-2"), ("train", "train-2"))
    assert read.needs("train") == {"prepare"}
    assert read.needs("train-2") == {"prepare-2"}
    assert (read["train"].gpus, read["train"].nodes) == (4, 2)
    assert read["train-2"].gpus == 2
    assert read["train-2"].writes == ("b.pt", "log.txt")
    assert read.graph.width == 2


def test_a_program_nobody_knows_keeps_its_place(tmp_path: Path) -> None:
    read = folder_of(
        tmp_path, prepare_py=PREPARE, run_sh="python prepare.py --out a\n./mystery x\npython prepare.py --out b\n"
    )
    assert read.needs("mystery") == {"prepare"}
    assert "mystery" in read.needs("prepare-2")
    assert read.why("prepare-2", "mystery") == "order in run.sh"


def test_a_makefile_says_what_is_made_from_what(tmp_path: Path) -> None:
    read = folder_of(
        tmp_path,
        prepare_py=PREPARE,
        train_py=TRAIN,
        Makefile="""
        PYTHON ?= python
        SETS := a b
        .PHONY: all report
        all: report
        data/%.npz: prepare.py
        \t@$(PYTHON) prepare.py --out $@
        model.pt: data/a.npz data/b.npz
        \t$(PYTHON) train.py --data $< --model $@
        report: model.pt
        \techo done
        \tcat model.pt | sort > report.txt
        """,
    )
    assert read.needs("model.pt") == {"data/a.npz", "data/b.npz"}
    assert read.needs("report") == {"model.pt"}
    assert read["model.pt"].kind == "training"
    assert read["model.pt"].command == ("make", "-o", "data/a.npz", "-o", "data/b.npz", "model.pt")
    assert "all" not in read.names
    assert "train" not in read.names  # it is what model.pt runs


def test_programs_that_need_each_other_keep_the_order_of_their_names(tmp_path: Path) -> None:
    read = folder_of(
        tmp_path,
        a_py="import numpy as np\nnp.load('b.npy')\nnp.save('a.npy', 1)\n",
        b_py="import numpy as np\nnp.load('a.npy')\nnp.save('b.npy', 1)\n",
    )
    assert read.needs("b") == {"a"}
    assert read.needs("a") == set()
    assert "need each other" in read.graph.notes[0]


def test_a_broken_file_in_a_folder_is_named_and_left_out(tmp_path: Path) -> None:
    read = folder_of(tmp_path, prepare_py=PREPARE, broken_py="def f(:\n")
    assert read.names == ["prepare"]
    assert read.graph.notes == ("Left out: broken.py:1: this is not valid Python: invalid syntax.",)


def test_what_is_no_file_is_named_and_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sh")
    read = folder_of(tmp_path, prepare_py=PREPARE)
    assert read.names == ["prepare"]
    assert read.graph.notes == ("Left out: pipe.sh: this is no file.",)
    with pytest.raises(WrongInput, match=r"pipe\.sh: this is no file"):
        analyze(tmp_path / "pipe.sh")


def test_packages_and_tests_are_no_programs(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "part.py").write_text("import numpy as np\nX = np.load('x.npy')\n")
    read = folder_of(tmp_path, test_a_py="import numpy as np\nnp.load('x.npy')\n", setup_py="print(f())\n")
    assert read.names == []
    assert "Nothing in it does anything" in read.graph.notes[0]


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match="there is no Python file, shell script or Makefile in it"):
        analyze(tmp_path)


def test_a_shell_script_alone_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("wget -O a.tgz https://x.org/a.tgz\ntar -xf a.tgz -C data\ncp data/a b\n")
    read = Read(analyze(tmp_path / "run.sh")[0])
    assert read.names == ["wget", "tar", "cp"]
    assert read.needs("tar") == {"wget"}
    assert read.needs("cp") == {"tar"}
    assert {task.kind for task in read.graph.tasks} == {"data"}


@pytest.mark.parametrize(
    ("line", "program", "gpus"),
    [
        ("time nohup python3.11 -u a.py --x 1", "a.py", None),
        ("nice -n 10 python -m pkg.tool", "pkg.tool", None),
        ("python -m torch.distributed.launch --nproc_per_node 8 a.py", "a.py", 8),
        ("accelerate launch --num_processes=2 a.py --y", "a.py", 2),
        ("mpirun -np 4 ./solver in.dat", "./solver", None),
        ("env A=1 B=2 ./a.py", "./a.py", None),
        ("gpuyard run -g 2 -- python a.py", "a.py", None),
        ("bash -e steps.sh", "steps.sh", None),
    ],
)
def test_a_command_is_told_from_what_is_around_it(line: str, program: str, gpus: int | None) -> None:
    [command] = shell.commands(line)
    started = shell.started(command)
    assert (started.program, started.gpus) == (program, gpus)


def test_loops_and_conditions_of_the_shell_are_passed_through() -> None:
    found = list(
        shell.commands(
            "if [ -f x ]; then\n  ./a\nfi\nfor s in 1 2 3; do ./b --seed $s; done\n"
            "cat <<EOF\n./not_this\nEOF\nwhile read l; do ./c; done\n# ./nor_this\n"
        )
    )
    assert [command.text for command in found] == ["./a", "./b --seed 1", "./b --seed 2", "./b --seed 3", "./c"]


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("for i in {1..3}; do ./a $i; done", ["./a 1", "./a 2", "./a 3"]),
        ("for i in $(seq 2); do for j in x y; do ./a $i$j; done; done", ["./a 1x", "./a 1y", "./a 2x", "./a 2y"]),
        ("L='p q'\nfor i in $L; do ./a $i; done; ./b $i", ["./a p", "./a q", "./b *"]),
        ("for i in *.csv; do ./a $i; done", ["./a *"]),
        ("for i in {1..100}; do ./a $i; done", ["./a *"]),
    ],
)
def test_a_short_loop_is_written_out(line: str, made: list[str]) -> None:
    assert [command.text for command in shell.commands(line)] == made


def test_a_long_loop_stays_one_task_and_says_how_long_it_is() -> None:
    [command] = shell.commands("for i in {1..100}; do ./a $i; done")
    assert (command.repeats, command.rounds) == ("for i in {1..100}", 100)


def test_variables_of_make_are_put_in() -> None:
    made = makefile.targets(
        "A = x\nB := $(A)/y\nB += z\nall: $(B) | order\n\techo $(B) $$HOME $@ $^\nC != date\nq: $(C)\n"
    )
    assert made["all"].needs == ["x/y", "z", "order"]
    assert made["all"].recipe == [(5, "echo x/y z $HOME all x/y z order")]
    assert made["q"].needs == ["*"]


def test_functions_of_make_that_rewrite_words_are_reckoned() -> None:
    made = makefile.targets(
        "S := a b\nO = out\nall: $(foreach s,$(S),$(O)/$(s).x) $(S:=.y) $(S:%=%.z) ${addprefix p/,$(S)} $(addsuffix .q, $(S)) \\\n"
        "  $(patsubst %.c,%.o,m.c n.c) $(wildcard *.w) $(F:.c=.o)\nF := k.c\n"
    )
    assert made["all"].needs == [
        "out/a.x", "out/b.x", "a.y", "b.y", "a.z", "b.z", "p/a", "p/b", "a.q", "b.q", "m.o", "n.o", "*", "*",
    ]  # fmt: skip


def test_targets_that_only_remove_things_are_left_out_unless_somebody_needs_them(tmp_path: Path) -> None:
    rules = "a.txt:\n\tsort b > a.txt\nclean:\n\trm -f a.txt\ndistclean: \n\tmake clean\nreset:\n\t@rm -rf x\n"
    (tmp_path / "Makefile").write_text(rules)
    read = folder_of(tmp_path)
    assert read.names == ["a.txt"]
    assert "Left out: Makefile:3: clean only removes things." in read.graph.notes
    (tmp_path / "Makefile").write_text(f"{rules}fresh: reset\n\tsort b > c\n")
    assert folder_of(tmp_path).names == ["a.txt", "reset", "fresh"]


def test_a_shell_script_in_a_folder_below_runs_where_its_programs_are(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "run.sh").write_text(
        "python prepare.py --out a.npz\npython train.py --data a.npz --model b.pt\n"
    )
    (tmp_path / "below" / "prepare.py").write_text(dedent(PREPARE))
    (tmp_path / "below" / "train.py").write_text(dedent(TRAIN))
    read = folder_of(tmp_path)
    assert read["prepare"].command == "cd below && python prepare.py --out a.npz"
    assert read["prepare"].writes == ("below/a.npz",)
    assert read.why("train", "prepare") == "file below/a.npz"


@pytest.mark.parametrize(
    "line",
    [
        "cd below", "mkdir x", "mkdir -p x && cd x", "if [ -f a ]; then", "ls | wc -l", "python c.py || exit 1", "rm -f a",
        "go() {", "function go {", "sort <<END > x\nEND", "trap stop EXIT", "git pull", "source env.sh", ". ./env.sh",
    ],
)  # fmt: skip
def test_a_shell_script_whose_commands_need_what_is_around_them_is_run_as_a_whole(tmp_path: Path, line: str) -> None:
    read = folder_of(tmp_path, run_sh=f"{line}\npython a.py\npython b.py\n", a_py="print(1)", b_py="print(2)")
    assert {read[name].command for name in ("a", "b")} == {None}
    assert "a" in read.needs("b")


def test_a_command_takes_what_makes_ready_for_it_and_where_its_output_goes(tmp_path: Path) -> None:
    read = folder_of(
        tmp_path,
        run_sh="""
        export OMP_NUM_THREADS=4 OUT=out
        mkdir -p $OUT
        A=1 python a.py "two words" 'x|y' > $OUT/log.txt 2>&1
        python b.py < $OUT/log.txt
        """,
        a_py="print(1)",
        b_py="print(2)",
    )
    ready = "export OMP_NUM_THREADS=4 OUT=out && mkdir -p out"
    assert read["a"].command == f"{ready} && A=1 python a.py 'two words' 'x|y' >out/log.txt 2>&1"
    assert read["b"].command == f"{ready} && python b.py <out/log.txt"
    assert read.why("b", "a") == "file out/log.txt"
