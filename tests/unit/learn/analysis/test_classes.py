"""The class of a task, its dependencies, and the evidence."""

from pathlib import Path

import pytest

from tests.unit.learn.analysis.scripts import script

TASKS = {
    ("training", "compute"): """
        import torch
        def work(model, loader, optimizer):
            for x, y in loader:
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
        """,
    ("training", "communication"): """
        import torch.distributed as dist
        def work(model):
            for p in model.parameters():
                for q in p:
                    dist.all_reduce(q.grad)
                    dist.broadcast(q, 0)
                    dist.barrier()
            model.loss.backward()
        """,
    ("inference", "compute"): """
        import torch
        def work(model, loader):
            model.eval()
            with torch.inference_mode():
                for x in loader:
                    model(x)
        """,
    ("inference", "memory"): """
        from transformers import AutoModelForCausalLM
        def work(prompts):
            model = AutoModelForCausalLM.from_pretrained("gpt2")
            for prompt in prompts:
                model.generate(prompt)
        """,
    ("data", "io"): """
        import json
        def work(names):
            for name in names:
                with open(name) as file:
                    json.load(file)
        """,
    ("data", "memory"): """
        import pandas as pd
        def work(table):
            return table.groupby("a").sum().merge(table).sort_values("b").drop_duplicates()
        """,
    ("hpc", "compute"): """
        import numpy as np
        def work(a, b):
            for _ in range(100):
                a = np.linalg.solve(a, b)
        """,
    ("hpc", "memory"): """
        import scipy.sparse
        def work(a, x):
            return scipy.sparse.csr_matrix(a) @ x
        """,
    ("hpc", "communication"): """
        from mpi4py import MPI
        def work(comm, part):
            for step in range(100):
                comm.Allreduce(part)
        """,
    ("other", "unknown"): """
        def work(a, b):
            return a + b
        """,
}


@pytest.mark.parametrize("meant", TASKS, ids="-".join)
def test_a_task_is_classified_by_what_it_calls(tmp_path: Path, meant: tuple[str, str]) -> None:
    task = script(tmp_path, TASKS[meant] + "\n        work(a, b)\n        last(1)\n")["work"]
    assert (task.kind, task.bound) == meant
    assert bool(task.evidence) is (meant[0] != "other")


def test_evidence_names_the_file_the_line_and_the_pattern(tmp_path: Path) -> None:
    task = script(tmp_path, TASKS["training", "compute"] + "\n        work(a, b, c)\n        last(1)\n")["work"]
    seen = {(found.file, found.line): (found.seen, found.says) for found in task.evidence}
    assert seen["script.py", 6] == ("loss.backward()", "computes gradients, training, compute-bound")


def test_gpu_tasks_request_a_gpu_and_others_none(tmp_path: Path) -> None:
    assert (
        script(tmp_path, TASKS["training", "compute"] + "\n        work(a, b, c)\n        last(1)\n")["work"].gpus == 1
    )
    assert script(tmp_path, TASKS["hpc", "compute"] + "\n        work(a, b)\n        last(1)\n")["work"].gpus == 0
    assert script(tmp_path, TASKS["data", "io"] + "\n        work(a)\n        last(1)\n")["work"].gpus == 0


def test_spawned_processes_are_counted_as_gpus(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import torch.multiprocessing as mp
        def worker(rank):
            loss.backward()
        mp.spawn(worker, nprocs=4)
        finish(1)
        """,
    )
    assert read["worker"].gpus == 4


def test_a_model_that_is_called_infers_however_much_it_reads_for_that(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        import numpy as np, torch
        def batch(part): return np.memmap(f"data/{part}.bin")
        @torch.no_grad()
        def judge(model):
            for part in ("train", "test"):
                for _ in range(200):
                    model(batch(part))
        judge(model)
        last(1)
        """,
    )
    assert (read["judge"].kind, read["judge"].gpus) == ("inference", 1)


def test_a_trainer_that_evaluates_infers_and_what_it_saves_is_data(tmp_path: Path) -> None:
    read = script(
        tmp_path,
        """
        from transformers import Trainer
        trainer = Trainer(model=model)
        trainer.train()
        scores = trainer.evaluate()
        trainer.save_model("out")
        """,
    )
    assert [(task.kind, task.gpus) for task in read.graph.tasks] == [("training", 1), ("inference", 1), ("data", 0)]
