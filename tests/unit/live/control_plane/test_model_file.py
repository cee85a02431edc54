"""Which performance model is used: a new file is loaded at run time, unless it is worse or invalid."""

import os
import zlib
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gpuyard.learn.performance.calibration import DEVIATIONS, Correction, ErrorShares
from gpuyard.learn.performance.ended_tasks import EndedRun, ended_runs
from gpuyard.learn.performance.model import SHIPPED, PerformanceModel, load
from gpuyard.learn.performance.rooflines import ROOFLINES
from gpuyard.live.control_plane.prediction.model_file import ENOUGH, ModelFile
from gpuyard.live.control_plane.prediction.performance_predictor import PerformancePredictor
from gpuyard.live.control_plane.stores.archiver import archive_row
from gpuyard.live.control_plane.views import TaskView
from tests.unit.live.control_plane.clusters import open_scheduler, run, until
from tests.unit.live.control_plane.learning_tasks import archive_of, ended


@pytest.fixture(scope="module")
def shipped() -> PerformanceModel:
    return load(SHIPPED)


def slower(model: PerformanceModel, times: float, seen_until: float = 0.0) -> PerformanceModel:
    """The same, but that steps take so many times as long on an H200."""
    network = model.kind_models["network"]
    columns = [name for name in network.heads["data_sheet"][0].columns if name not in ROOFLINES["network"].words]
    words = list(product(*(range(len(network.vocabulary[name])) for name in ROOFLINES["network"].words)))
    known, named = [[0.0] * len(columns)] * len(words), [list(map(float, one)) for one in words]
    family = [""] * len(words)
    one = Correction(ErrorShares(), [1e9] * len(columns), known, named, family, [1.0] * len(words), 1.0, 1.0)
    shown, _, _ = one.at(np.array(known[:1]), np.array(named[:1]), np.array(["resnet"]))
    low, high = network.bands["gpu_and_family"]["H200-SXM"]
    size = (high - low) / 2.0 / DEVIATIONS
    offset = msgspec.structs.replace(one, wrong=[float(np.log(times) / size / shown[0])] * len(words))
    corrected = replace(network, corrections={**network.corrections, "H200-SXM": offset})
    return PerformanceModel(
        {**model.kind_models, "network": corrected}, model.specs, model.trained_on, seen_until
    )  # fmt: skip


def judging(views: list[TaskView]) -> "Judging":
    return Judging(ended_runs([(row.finished_at, row.answer) for row in map(archive_row, views)]))


class Judging:
    """The tasks that ended after an instant."""

    def __init__(self, ran: list[EndedRun]) -> None:
        self._ran = ran

    def __call__(self, instant: float) -> list[EndedRun]:
        return [one for one in self._ran if one.ended_at > instant]


@pytest.fixture(scope="module")
def twice_as_long(shipped: PerformanceModel) -> list[TaskView]:
    """Tasks of a cluster whose H200s take twice as long as predicted."""
    return ended(3 * ENOUGH, 2.0, shipped)


@pytest.mark.slow
def test_a_better_model_is_used_and_reports_by_how_much(
    tmp_path: Path, shipped: PerformanceModel, twice_as_long: list[TaskView]
) -> None:
    models = ModelFile(tmp_path / "yard.model")
    assert not models.renew(judging(twice_as_long)), "there is no file yet"
    slower(shipped, 2.0).save(tmp_path / "yard.model")
    assert models.renew(judging(twice_as_long))
    assert models.standing.file == str(tmp_path / "yard.model")
    assert models.standing.why.startswith("It is equal or better: mean error of run times 49.9% before and 1.5%")
    assert f"on {3 * ENOUGH} recent tasks" in models.standing.why
    assert not models.renew(judging(twice_as_long)), "it was looked at before"


@pytest.mark.slow
def test_a_worse_model_is_not_used_and_a_later_better_one_is(
    tmp_path: Path, shipped: PerformanceModel, twice_as_long: list[TaskView]
) -> None:
    file = tmp_path / "yard.model"
    models = ModelFile(file)
    slower(shipped, 0.2).save(file)
    assert not models.renew(judging(twice_as_long))
    assert (models.standing.file, models.standing.refused) == (None, 1)
    assert models.standing.refused_why is not None
    assert "is worse: mean error of run times" in models.standing.refused_why
    slower(shipped, 1.9).save(file)
    assert models.renew(judging(twice_as_long))


@pytest.mark.slow
def test_a_model_is_scored_on_tasks_it_was_not_trained_on_and_used_if_there_are_too_few(
    tmp_path: Path, shipped: PerformanceModel, twice_as_long: list[TaskView]
) -> None:
    seen_until = twice_as_long[-5].finished_at
    assert seen_until is not None
    slower(shipped, 0.2, seen_until).save(tmp_path / "yard.model")
    models = ModelFile(tmp_path / "yard.model")
    assert models.renew(judging(twice_as_long))
    assert models.standing.why == "Only 4 recent tasks could be used to evaluate it, and they do not contradict it."


@pytest.mark.parametrize("damage", ["half", "other version", "text"])
def test_an_invalid_model_file_changes_nothing(tmp_path: Path, damage: str) -> None:
    file, whole = tmp_path / "yard.model", SHIPPED.read_bytes()
    other = {**msgspec.msgpack.decode(zlib.decompress(whole)), "version": 99}
    texts = {
        "half": whole[: len(whole) // 2],
        "other version": zlib.compress(msgspec.msgpack.encode(other)),
        "text": b"not a model",
    }
    file.write_bytes(texts[damage])
    models = ModelFile(file)
    assert not models.renew(lambda _: [])
    assert (models.standing.refused, models.standing.file) == (1, None)
    assert str(file) in str(models.standing.refused_why)
    assert models.current() is not None


@pytest.mark.slow
def test_a_running_scheduler_loads_a_new_model_and_uses_it_at_once(
    tmp_path: Path, shipped: PerformanceModel, twice_as_long: list[TaskView], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.live.control_plane.prediction.model_watch.MODEL_SECONDS", 0.02)
    file = tmp_path / "yard.model"
    performance_predictor = PerformancePredictor(file)
    work = twice_as_long[0].spec.work
    assert work is not None
    archive_of(tmp_path, twice_as_long).close()

    async def story() -> None:
        async with open_scheduler(tmp_path, performance_predictor=performance_predictor) as (_, _address):
            (before,) = performance_predictor.tell(work, {"NVIDIA H200": 143_771})
            slower(shipped, 2.0).save(file)
            await until(lambda: performance_predictor.models.standing.file is not None)
            (after,) = performance_predictor.tell(work, {"NVIDIA H200": 143_771})
            assert after.seconds == pytest.approx(2.0 * before.seconds, rel=1e-3)
            assert after.memory_mib == before.memory_mib
            file.write_bytes(b"rubbish")
            os.utime(file, (1, 1))
            await until(lambda: performance_predictor.models.standing.refused == 1)
            assert performance_predictor.tell(work, {"NVIDIA H200": 143_771}) == (after,)
            performance_predictor.models.renew(lambda _: [])
            assert performance_predictor.models.standing.refused == 1, "a file is judged once"

    run(story)
