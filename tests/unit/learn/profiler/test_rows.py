from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.profiler.rows import Configuration, ProfileRow, append, measured_configurations, read

ROW = ProfileRow(
    model="own/mlp", family="mlp", kind="vector", size=512, mode="train", batch=8, precision="fp32", compiled=False, clock_mhz=None,
    gpu="H200", driver="", launch_us=7.0, torch="2", measured_on="2026-11-15", steps=10, step_ms=1.5, step_ms_p10=1.0, step_ms_p90=2.0, gpu_ms=1.2,
    memory_allocated_mib=10.0, memory_reserved_mib=20.0, memory_nvml_mib=None, utilization=0.5, memory_utilization=None,
    power_w=300.0, energy_j=0.45, sm_clock_mhz=None, memory_clock_mhz=1.0, temperature_c=40.0, parameters=7,
    flops=1e9, bytes=2e6, heavy_bytes=1e6, kernels=12.0, heavy_kernels=4.0, parameter_bytes=28.0, activation_bytes=0.0,
    largest_bytes=100.0,
)  # fmt: skip


def test_written_rows_are_read_back(tmp_path: Path) -> None:
    other = msgspec.structs.replace(ROW, batch=16, compiled=True)
    append(tmp_path / "rows.csv", ROW)
    append(tmp_path / "rows.csv", other)
    assert read(tmp_path / "rows.csv") == [ROW, other]


def test_steps_at_two_clocks_are_two_configurations(tmp_path: Path) -> None:
    append(tmp_path / "rows.csv", ROW)
    append(tmp_path / "rows.csv", msgspec.structs.replace(ROW, clock_mhz=1200))
    assert {one.clock_mhz for one in measured_configurations([tmp_path / "rows.csv"])} == {None, 1200}


def test_a_run_resumes_where_it_was_stopped(tmp_path: Path) -> None:
    append(tmp_path / "rows.csv", ROW)
    assert measured_configurations([tmp_path / "rows.csv", tmp_path / "none.csv"]) == {
        Configuration("own/mlp", "train", 8, "fp32")
    }


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("model,family\nown/mlp,mlp\n")
    with pytest.raises(WrongInput, match="has no column kind, size, mode"):
        read(tmp_path / "rows.csv")


def test_a_truncated_row_is_named_by_its_line(tmp_path: Path) -> None:
    append(tmp_path / "rows.csv", ROW)
    whole = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(whole + "own/mlp,mlp,vec\n")
    with pytest.raises(WrongInput, match=r"rows\.csv, line 3: size is missing"):
        read(tmp_path / "rows.csv")


def test_an_invalid_value_is_named_with_its_place(tmp_path: Path) -> None:
    append(tmp_path / "rows.csv", ROW)
    whole = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(whole.replace("train,8,", "train,eight,"))
    with pytest.raises(WrongInput, match=r"rows\.csv, line 2: batch must not be 'eight'"):
        read(tmp_path / "rows.csv")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WrongInput, match=r"rows\.csv is not a file of profiles: it is not UTF-8"):
        read(tmp_path / "rows.csv")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "", "fast", "1,5"])
def test_a_time_that_is_not_a_number_is_refused(tmp_path: Path, value: str) -> None:
    append(tmp_path / "rows.csv", ROW)
    whole = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(whole.replace(",1.5,", f',"{value}",'))
    with pytest.raises(WrongInput, match=r"rows\.csv, line 2: step_ms must not be"):
        read(tmp_path / "rows.csv")


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    append(tmp_path / "rows.csv", ROW)
    whole = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(whole + "\n\nown/mlp,mlp,vec\n")
    with pytest.raises(WrongInput, match=r"rows\.csv, line 5: size is missing"):
        read(tmp_path / "rows.csv")


def test_foreign_columns_are_left_alone(tmp_path: Path) -> None:
    append(tmp_path / "rows.csv", ROW)
    head, row = (tmp_path / "rows.csv").read_text().splitlines()
    (tmp_path / "rows.csv").write_text(f"note,{head}\nmine,{row}\n")
    assert read(tmp_path / "rows.csv") == [ROW]


def test_a_field_that_is_too_long_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("model,family\n" + "x" * 200_000 + ",mlp\n")
    with pytest.raises(WrongInput, match=r"rows\.csv is not a file of profiles: field larger than"):
        read(tmp_path / "rows.csv")


@pytest.mark.parametrize("text", ["", "\n", "\n\n\n"])
def test_an_empty_file_has_no_columns(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(WrongInput, match="has no column model, family, kind …"):
        read(tmp_path / "rows.csv")


NUMBERS = st.floats(0.0, 1e12, allow_nan=False).map(lambda number: float(f"{number:.6g}"))


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30), NUMBERS,
    st.none() | NUMBERS, st.integers(1, 10**9), st.booleans(),
)  # fmt: skip
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_row_is_read_as_it_was_written(
    tmp_path: Path, name: str, step_ms: float, power_w: float | None, batch: int, compiled: bool
) -> None:
    row = msgspec.structs.replace(ROW, model=name, step_ms=step_ms, power_w=power_w, batch=batch, compiled=compiled)
    path = tmp_path / "rows.csv"
    path.unlink(missing_ok=True)
    append(path, ROW)
    append(path, row)
    assert read(path) == [ROW, row]
