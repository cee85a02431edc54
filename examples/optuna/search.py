"""Hyperparameter search with Optuna: the study stays here, its trials are tasks of a cluster.

    python search.py --trials 20 --at-once 4

A trial that fails is told to the study as failed, and the search goes on.
"""

import argparse
from concurrent.futures import FIRST_COMPLETED, wait

import optuna

import gpuyard

SPACE = {
    "lr": optuna.distributions.FloatDistribution(1e-4, 1.0, log=True),
    "depth": optuna.distributions.IntDistribution(1, 8),
}


def objective(lr, depth):
    """Stands for a training: its loss is least at lr=0.1 and depth=4, and some depths do not converge."""
    import math

    if depth == 8:
        raise ValueError("depth 8 does not converge")
    return (math.log10(lr) + 1) ** 2 + (depth - 4) ** 2 / 10


def search(executor, trials, at_once, seed):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    running, asked = {}, 0
    while asked < trials or running:
        while asked < trials and len(running) < at_once:
            trial = study.ask(SPACE)
            running[executor.submit(objective, **trial.params)] = trial
            asked += 1
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            trial = running.pop(future)
            if future.exception() is None:
                study.tell(trial, future.result())
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                print(f"trial {trial.number} failed: {future.exception()}")
    return study


def main():
    parser = argparse.ArgumentParser(description="Search with Optuna on a cluster.")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a trial (default: only a CPU)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    needs = {"gpus": options.gpus} if options.gpus else {"cpu_count": 1}
    with gpuyard.connect().executor(name="trial", **needs) as executor:
        study = search(executor, options.trials, options.at_once, options.seed)
    print(f"{len(study.trials)} trials, best {study.best_value:.3f} with {study.best_params}")


if __name__ == "__main__":
    main()
