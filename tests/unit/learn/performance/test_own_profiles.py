"""The rows of the repository and the shipped model: generous bounds that a regression would break."""

from pathlib import Path

import numpy as np
import pytest

from gpuyard.learn.performance import dataset, evaluation
from gpuyard.learn.performance import model as performance_model
from gpuyard.learn.performance.calibration import read_peaks
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.gpu_specs import shipped

PROFILES = Path(__file__).parents[4] / "profiles"
NEW = ("resnet", "bert", "vit", "decoder", "mobilenet", "diffusion")
BOUNDS = {"network": 0.28, "memory": 0.20, "utilization": 0.30}


@pytest.fixture(scope="module")
def rows() -> dict[str, ProfileRows]:
    return dataset.merge_rows(dataset.read(PROFILES / "h200.csv"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOUNDS)
def test_families_left_out_of_training_are_predicted(kind: str, rows: dict[str, ProfileRows]) -> None:
    new = np.isin(rows[kind].family, NEW)
    told = evaluation.across_files({kind: rows[kind].take(~new)}, {kind: rows[kind].take(new)}, shipped())
    said = evaluation.report(told)
    assert said["rows"] > 300
    assert said["mape"] < BOUNDS[kind]
    assert 0.65 < said["band_coverage"] < 0.99
    assert set(said["by_head"]) == {"gpu"}


def test_the_shipped_model_was_trained_on_these_rows(rows: dict[str, ProfileRows]) -> None:
    model = performance_model.load(performance_model.SHIPPED)
    assert model.trained_on["memory"] > len(rows["memory"]) == 2108
    for kind, most in {"network": 0.15, "memory": 0.12, "utilization": 0.15}.items():
        said = model.predict(rows[kind])
        assert set(said.head.tolist()) == {"gpu_and_family"}
        assert performance_model.accuracy(rows[kind].measured, said)["mape"] < most


def test_the_peaks_beside_them_belong_to_a_known_gpu() -> None:
    measured = shipped().with_peaks(read_peaks(PROFILES / "calibration-h200.json")).find("H200")
    assert measured.launch_us == 6.64
    assert 0.7 < measured.sustained_tflops("bf16") / measured.tflops("bf16") < 1.0
