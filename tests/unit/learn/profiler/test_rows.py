from pathlib import Path

import msgspec
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.profiler.rows import Configuration, Row, already, append, read

ROW = Row(
    model="own/mlp", family="mlp", kind="vector", size=512, mode="train", batch=8, precision="fp32", compiled=False,
    gpu="H200", driver="", launch_us=7.0, torch="2", measured_on="2026-11-15", steps=10, step_ms=1.5, step_ms_p10=1.0, step_ms_p90=2.0,
    memory_allocated_mib=10.0, memory_reserved_mib=20.0, memory_nvml_mib=None, utilisation=0.5, memory_utilisation=None,
    power_w=300.0, energy_j=0.45, sm_clock_mhz=None, memory_clock_mhz=1.0, temperature_c=40.0, parameters=7,
    flops=1e9, bytes=2e6, heavy_bytes=1e6, kernels=12.0, heavy_kernels=4.0, parameter_bytes=28.0, activation_bytes=0.0,
    largest_bytes=100.0,
)  # fmt: skip


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    other = msgspec.structs.replace(ROW, batch=16, compiled=True)
    append(tmp_path / "rows.csv", ROW)
    append(tmp_path / "rows.csv", other)
    assert read(tmp_path / "rows.csv") == [ROW, other]


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    append(tmp_path / "rows.csv", ROW)
    assert already([tmp_path / "rows.csv", tmp_path / "none.csv"]) == {Configuration("own/mlp", "train", 8, "fp32")}


def test_a_file_without_a_column_says_which(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("model,family\nown/mlp,mlp\n")
    with pytest.raises(WrongInput, match="has no column kind, size, mode"):
        read(tmp_path / "rows.csv")


def test_a_row_cut_in_half_is_named_by_its_line(tmp_path: Path) -> None:
    append(tmp_path / "rows.csv", ROW)
    whole = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(whole + "own/mlp,mlp,vec\n")
    with pytest.raises(WrongInput, match=r"rows\.csv, line 3: size is missing"):
        read(tmp_path / "rows.csv")


def test_a_value_that_can_not_be_is_named_with_its_place(tmp_path: Path) -> None:
    append(tmp_path / "rows.csv", ROW)
    whole = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(whole.replace("train,8,", "train,eight,"))
    with pytest.raises(WrongInput, match=r"rows\.csv, line 2: batch can not be 'eight'"):
        read(tmp_path / "rows.csv")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WrongInput, match=r"rows\.csv is no file of profiles: it is not text in UTF-8"):
        read(tmp_path / "rows.csv")
