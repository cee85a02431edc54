"""A learned kind of work: on measured GPUs, on unmeasured ones, and on those with few measurements."""

from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.learn.performance import evaluation, kind_model
from gpuyard.learn.performance import model as performance_model
from gpuyard.learn.performance.dataset import ProfileRows, merge_rows, read
from gpuyard.learn.performance.gpu_specs import GpuSpec, GpuSpecs
from gpuyard.learn.performance.model import PerformanceModel, accuracy
from gpuyard.learn.performance.query import predict_on_gpus, profile_of, query_rows
from tests.unit.learn.performance.synthetic_rows import COLUMNS, FAST, MIDDLE, SLOW, SPECS, products, write


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind_model, "THREADS", 1)


def measured(folder: Path, gpus: list[GpuSpec], count: int, seed: int = 1, slower: float = 1.0) -> ProfileRows:
    return read(write(folder / f"{seed}.csv", COLUMNS, products(gpus, count, seed, slower=slower)))[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> PerformanceModel:
    kind_model.THREADS = 1
    rows = measured(tmp_path_factory.mktemp("rows"), [SLOW, MIDDLE, FAST], 400)
    return PerformanceModel.trained({rows.kind: rows}, SPECS)


@pytest.mark.slow
def test_new_work_on_a_measured_gpu_is_predicted_within_its_noise(trained: PerformanceModel, tmp_path: Path) -> None:
    rows = measured(tmp_path, [SLOW, FAST], 150, seed=2)
    told = accuracy(rows.measured, trained.predict(rows))
    assert told["mape"] < 0.08
    assert 0.7 < told["band_coverage"] < 0.97
    assert set(trained.predict(rows).head.tolist()) == {"gpu"}


@pytest.mark.slow
def test_an_unmeasured_gpu_is_predicted_from_its_data_sheet(tmp_path: Path) -> None:
    train, test = measured(tmp_path, [SLOW, FAST], 400), measured(tmp_path, [MIDDLE], 150, seed=2)
    said = PerformanceModel.trained({train.kind: train}, SPECS).predict(test)
    assert set(said.head.tolist()) == {"data_sheet"}
    assert accuracy(test.measured, said)["mape"] < 0.15


@pytest.mark.slow
def test_a_few_measured_rows_correct_the_predictions_of_a_gpu(tmp_path: Path) -> None:
    train = measured(tmp_path, [SLOW, FAST], 400)
    few = measured(tmp_path, [MIDDLE], 30, seed=2, slower=1.6)
    test = measured(tmp_path, [MIDDLE], 150, seed=3, slower=1.6)
    by_sheet = PerformanceModel.trained({train.kind: train}, SPECS).predict(test)
    corrected = PerformanceModel.trained(merge_rows([train, few]), SPECS).predict(test)
    assert set(corrected.head.tolist()) == {"corrected"}
    assert accuracy(test.measured, corrected)["mape"] < 0.5 * accuracy(test.measured, by_sheet)["mape"]


def test_a_range_contains_its_middle(trained: PerformanceModel, tmp_path: Path) -> None:
    said = trained.predict(measured(tmp_path, [MIDDLE], 50, seed=4))
    assert (said.low <= said.middle).all()
    assert (said.middle <= said.high).all()


@pytest.mark.slow
def test_the_same_rows_give_the_same_model(tmp_path: Path) -> None:
    rows = measured(tmp_path, [SLOW, FAST], 100)
    first, second = (PerformanceModel.trained({rows.kind: rows}, SPECS).predict(rows).middle for _ in range(2))
    assert (first == second).all()


def test_a_model_predicts_the_same_after_a_round_trip(trained: PerformanceModel, tmp_path: Path) -> None:
    rows, file = measured(tmp_path, [SLOW, MIDDLE], 50, seed=5), tmp_path / "yard.model"
    trained.save(file)
    again = performance_model.load(file)
    assert again.predict(rows).middle == pytest.approx(trained.predict(rows).middle)
    assert again.predict(rows).low == pytest.approx(trained.predict(rows).low)
    assert again.specs.gpus == SPECS.gpus


def test_a_model_of_another_version_is_refused(
    trained: PerformanceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "yard.model"
    monkeypatch.setattr(performance_model, "VERSION", 99)
    trained.save(file)
    monkeypatch.undo()
    with pytest.raises(WrongInput, match=r"yard.model has version 99, and this gpuyard reads version 6"):
        performance_model.load(file)


@pytest.mark.parametrize("content", [b"", b"something else", b"\x78\x9c\x03\x00\x00\x00\x00\x01"])
def test_an_invalid_model_file_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "yard.model").write_bytes(content)
    with pytest.raises(WrongInput, match=r"yard.model is not a performance model of gpuyard"):
        performance_model.load(tmp_path / "yard.model")


def test_an_unlearned_kind_is_named(trained: PerformanceModel, tmp_path: Path) -> None:
    (rows,) = read(write(tmp_path / "v.csv", ("gpu", "op", "B", "H", "latency_ms"), [["slow-1", "add", 10, 10, 0.1]]))
    with pytest.raises(WrongInput, match="was trained on neusight_matmul, not on neusight_vector"):
        trained.predict(rows)


@pytest.mark.parametrize("split", evaluation.SPLITS)
def test_every_row_is_predicted_once_by_a_model_that_was_not_trained_on_it(split: str, tmp_path: Path) -> None:
    rows = measured(tmp_path, [SLOW, MIDDLE], 60)
    group = {"random": np.arange(len(rows)).astype(np.str_), "family": rows.family, "gpu": rows.gpu}[split]
    seen = np.zeros(len(rows), dtype=np.int64)
    for held, shown in evaluation.parts(rows, split, seed=1, samples=0):
        assert not shown.any()
        assert not set(group[held].tolist()) & set(group[~held].tolist())
        seen += held
    assert (seen == 1).all()


def test_samples_of_a_gpu_are_trained_on_and_not_predicted(tmp_path: Path) -> None:
    rows = measured(tmp_path, [SLOW, MIDDLE], 60)
    for held, shown in evaluation.parts(rows, "gpu", seed=1, samples=20):
        assert shown.sum() == 20
        assert not (held & shown).any()
        assert len(set(rows.gpu[held | shown].tolist())) == 1


def test_figures_are_reported_in_total_and_per_gpu(tmp_path: Path) -> None:
    train, test = measured(tmp_path, [SLOW, FAST], 100), measured(tmp_path, [SLOW, FAST], 20, seed=2)
    figures = evaluation.report(evaluation.across_files({train.kind: train}, {test.kind: test}, SPECS))
    assert figures["rows"] == 40
    assert {name: one["rows"] for name, one in figures["by_gpu"].items()} == {"slow-1": 20, "fast-1": 20}
    assert figures.keys() >= {"mape", "median_ape", "within_20", "band_coverage", "by_gpu", "by_kind"}


@pytest.mark.slow
def test_a_gpu_whose_chip_was_measured_on_another_board_is_predicted_like_that_one(tmp_path: Path) -> None:
    board = msgspec.structs.replace(MIDDLE, compute_capability="9.0")
    other = msgspec.structs.replace(board, gpu="middle-2", mem_bw_gbs=900.0, sm_count=75)
    specs = GpuSpecs([SLOW, board, other, FAST])
    train = read(
        write(tmp_path / "t.csv", COLUMNS, [*products([SLOW, FAST], 300), *products([board], 300, 2, slower=1.6)])
    )[0]
    test = measured(tmp_path, [other], 150, seed=3, slower=1.6)
    said = PerformanceModel.trained({train.kind: train}, specs).predict(test)
    assert set(said.head.tolist()) == {"same_chip"}
    assert accuracy(test.measured, said)["mape"] < 0.12


@pytest.mark.slow
def test_a_gpu_that_is_harder_to_predict_has_its_own_wider_range(tmp_path: Path) -> None:
    def noisy(count: int, seed: int) -> list[tuple[object, ...]]:
        luck = Random(seed)
        return [
            (*row[:-1], float(str(row[-1])) * luck.lognormvariate(0.0, 0.4)) for row in products([MIDDLE], count, seed)
        ]

    train = read(write(tmp_path / "t.csv", COLUMNS, [*products([SLOW, FAST], 1_500), *noisy(450, 2)]))[0]
    test = read(write(tmp_path / "s.csv", COLUMNS, noisy(400, 3)))[0]
    said = PerformanceModel.trained({train.kind: train}, SPECS).predict(test)
    assert set(said.head.tolist()) == {"gpu"}
    assert 0.72 < accuracy(test.measured, said)["band_coverage"] < 0.93


@pytest.mark.slow
def test_if_rows_are_sampled_a_gpu_with_few_rows_keeps_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind_model, "MOST_ROWS", dict.fromkeys(kind_model.MOST_ROWS, 600))
    train = read(write(tmp_path / "t.csv", COLUMNS, [*products([SLOW, FAST], 1_500), *products([MIDDLE], 450, 2)]))[0]
    said = PerformanceModel.trained({train.kind: train}, SPECS)
    test = measured(tmp_path, [MIDDLE], 150, seed=3)
    assert accuracy(test.measured, said.predict(test))["mape"] < 0.09
    assert set(said.kind_models[train.kind].bands["gpu"]) == {"", "slow-1", "middle-1", "fast-1"}


def test_a_range_from_one_family_is_as_wide_as_its_rows_differ(tmp_path: Path) -> None:
    rows = measured(tmp_path, [SLOW], 60)
    alone = kind_model.fit(replace(rows, family=np.full(len(rows), "one")), SPECS)
    assert alone.bands["gpu"][""][0] < 0.0 < alone.bands["gpu"][""][1]


def test_a_handful_of_rows_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match="The training data has 4 rows of neusight_matmul; at least 10 are needed"):
        kind_model.fit(measured(tmp_path, [SLOW], 4), SPECS)


@pytest.mark.slow
def test_few_rows_of_another_kind_do_not_narrow_the_range_of_a_data_sheet(tmp_path: Path) -> None:
    def with_op(rows: ProfileRows, op: str) -> ProfileRows:
        return replace(rows, words={"op": np.full(len(rows), op)})

    train = measured(tmp_path, [SLOW, FAST], 400)
    few = with_op(measured(tmp_path, [MIDDLE], 11, seed=2), "bmm")
    test = measured(tmp_path, [MIDDLE], 150, seed=3)
    sheet = PerformanceModel.trained({train.kind: train}, SPECS).predict(test)
    said = PerformanceModel.trained(merge_rows([train, few]), SPECS).predict(test)
    assert set(said.head.tolist()) == {"corrected"}
    assert np.mean(np.log(said.high / said.low)) > 0.85 * np.mean(np.log(sheet.high / sheet.low))


def test_work_of_a_mode_that_was_measured_nowhere_has_a_range_twice_as_wide() -> None:
    model = performance_model.load(performance_model.SHIPPED)
    work = WorkloadSpec(model="resnet50", mode="train", precision="amp", batch=64)
    rows = query_rows("network", work, [profile_of(work)], np.array([64.0]), ["L4"])
    known = model.predict(rows)
    unknown = model.predict(replace(rows, words={**rows.words, "source": np.array(["nobody"])}))
    ratio = np.log(unknown.high / unknown.low) / np.log(known.high / known.low)
    assert ratio[0] > 1.5


@pytest.mark.parametrize(("mode", "basis"), [("infer", "gpu_and_family"), ("train", "data_sheet")])
def test_a_gpu_counts_as_measured_only_in_the_modes_that_were_measured_on_it(mode: str, basis: str) -> None:
    """The shipped rows of an RTX 4090 are inference of large batches in 16 bits."""
    model = performance_model.load(performance_model.SHIPPED)
    work = WorkloadSpec(model="resnet50", mode=mode, precision="amp_fp16", batch=256)
    (said,) = predict_on_gpus(model, work, profile_of(work), ["RTX4090"], model.specs)
    assert said.from_ == basis


def test_a_step_that_waits_for_its_host_is_not_taken_for_the_large_batches_that_were_measured() -> None:
    model = performance_model.load(performance_model.SHIPPED)
    work = WorkloadSpec(model="resnet50", mode="infer", precision="amp_fp16", batch=1)
    (said,) = predict_on_gpus(model, work, profile_of(work), ["RTX4090"], model.specs)
    assert said.from_ == "data_sheet"
    assert said.step_high_ms > 1.4 * said.step_low_ms


def test_a_gpu_of_another_maker_than_every_measured_one_has_a_wider_range() -> None:
    model = performance_model.load(performance_model.SHIPPED)
    network = model.kind_models["network"]
    alone = replace(network, corrections={})
    work = WorkloadSpec(model="resnet50", mode="train", precision="fp32", batch=64)
    specs = model.specs
    ours = msgspec.structs.replace(specs.find("MI100"), gpu="same", aliases="", vendor="NVIDIA")
    both = GpuSpecs([*specs.gpus.values(), ours])
    rows = query_rows("network", work, [profile_of(work)] * 2, np.full(2, 64.0), ["MI100", "same"])
    said = alone.predict(rows, both)
    widths = np.log(said.high / said.low)
    assert widths[0] == pytest.approx(2.0 * widths[1], rel=0.02)


def test_a_gpu_without_bf16_has_a_wider_range_than_the_same_one_with_it() -> None:
    model = performance_model.load(performance_model.SHIPPED)
    alone = replace(model.kind_models["network"], corrections={})
    work = WorkloadSpec(model="resnet50", mode="train", precision="fp32", batch=256)
    newer = msgspec.structs.replace(model.specs.find("T4"), gpu="same", aliases="", bf16_dense_tflops=65.0)
    both = GpuSpecs([*model.specs.gpus.values(), newer])
    rows = query_rows("network", work, [profile_of(work)] * 2, np.full(2, 256.0), ["T4", "same"])
    said = alone.predict(rows, both)
    widths = np.log(said.high / said.low)
    assert widths[0] == pytest.approx(2.0 * widths[1], rel=0.02)


def test_a_step_that_waits_for_an_unknown_host_has_a_wider_range() -> None:
    model = performance_model.load(performance_model.SHIPPED)
    work = WorkloadSpec(model="resnet50", mode="infer", precision="fp32")
    batches = np.array([1.0, 256.0])
    rows = query_rows("network", work, [profile_of(work)] * 2, batches, ["A30", "A30"])
    network = model.kind_models["network"]
    said = network.predict(rows, model.specs)
    sheet = network.data_sheet_bands(network.table(rows, model.specs))
    wider = np.log(said.high / said.middle) - sheet[:, 1]
    assert wider[0] > 0.2
    assert wider[1] < 0.02


def test_few_rows_of_one_family_leave_the_ranges_of_other_families_as_wide(tmp_path: Path) -> None:
    train, test = measured(tmp_path, [SLOW, FAST], 150), measured(tmp_path, [MIDDLE], 80, seed=7)
    made = kind_model.fit(train, SPECS)
    others = test.take(test.family != test.family[0])
    before = made.predict(others, SPECS)
    made.correct(test.take(np.zeros(11, dtype=np.intp)), SPECS)
    after = made.predict(others, SPECS)
    assert set(after.head.tolist()) == {"corrected"}
    assert (np.log(after.high / after.low) >= np.log(before.high / before.low) - 1e-9).all()


def test_errors_on_held_out_gpus_overstate_those_on_a_further_one_less_the_more_gpus_there_are() -> None:
    factors = [kind_model._one_gpu_more(count) for count in (2, 3, 8)]
    assert factors == sorted(factors)
    assert factors[0] == pytest.approx(np.sqrt(1.5 / 2.0))
    assert factors[-1] < 1.0
