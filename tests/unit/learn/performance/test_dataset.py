"""Profile files, recognized by their columns."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.published.sources import PUBLISHED_SOURCES
from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.dataset import merge_rows, read
from gpuyard.learn.performance.gpu_specs import GpuSpecs, shipped
from gpuyard.learn.performance.operation_profile import OperationProfile, OperationProfiles
from gpuyard.learn.performance.rooflines import ROOFLINES
from gpuyard.learn.performance.rooflines.chips import GpuColumns
from gpuyard.learn.performance.sources import SOURCES
from tests.unit.learn.performance.synthetic_rows import COLUMNS, write

EXAMPLES: dict[str, tuple[str, str, str]] = {
    "timm": (
        "network",
        "gpu,mode,precision,layout,torch,cuda,compiled,model,img_size,batch_size,gmacs_per_sample,mactivations_per_sample,params_m,samples_per_sec,step_time_ms,family",
        "RTX3090,infer,amp_fp16,nchw,113,117,0,resnet50,224,1024,4.11,11.11,25.56,2258.89,453.305,resnet",
    ),
    "neusight_e2e": (
        "network",
        "gpu,model,mode,seqlen,batch,option,num_layer,measured_ms",
        "A100-40GB-PCIe,bert_large,inf,512,8,,24.0,205.506",
    ),
    "schedtune_peak_memory": (
        "memory",
        "model,batch_size,activations_mb,parameters_mb,input_mb,peak_mem_mib,cuda_cores,mem_bw_gbs,mem_clock_mhz,tensor_cores,sm_count",
        "resnet18,8,227.25,44.59,4.59,824,2496,240.6,5012,0,13",
    ),
    "gpuyard": (
        "network",
        "model,family,kind,size,mode,batch,precision,compiled,gpu,driver,torch,measured_on,steps,step_ms,memory_reserved_mib,utilization",
        "torchvision/resnet50,resnet,image,224,train,64,amp,false,NVIDIA H200,580,2.11.0+cu130,2026-11-15,36,83.2,6912,0.93",
    ),
}


def file_of(source: str, folder: Path) -> Path:
    _, columns, row = EXAMPLES[source]
    return write(folder / "rows.csv", columns.split(","), [row.split(",")])


def test_every_source_has_an_example() -> None:
    assert EXAMPLES.keys() == SOURCES.keys() - PUBLISHED_SOURCES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("source", EXAMPLES)
def test_a_file_is_recognized_by_its_columns_and_its_rows_have_features(source: str, tmp_path: Path) -> None:
    parts = read(file_of(source, tmp_path))
    assert parts[0].kind == EXAMPLES[source][0]
    for rows in parts:
        base, columns = ROOFLINES[rows.kind].features(rows, GpuColumns.of(rows, shipped()))
        assert (base > 0).all()
        assert (rows.measured > 0).all()
        assert all(len(values) == len(rows) and np.isfinite(values).all() for values in columns.values())
        assert ROOFLINES[rows.kind].gives_away <= columns.keys() | rows.words.keys()


def test_a_gpu_twice_as_fast_in_everything_has_half_the_roofline(tmp_path: Path) -> None:
    (rows,) = read(file_of("timm", tmp_path))
    sheet = shipped().find("RTX3090")
    twice = ("fp16_dense_tflops", "fp32_tflops", "mem_bw_gbs", "tdp_w")
    faster = GpuSpecs([msgspec.structs.replace(sheet, **{name: 2 * getattr(sheet, name) for name in twice})])
    features = ROOFLINES["network"].features
    assert features(rows, GpuColumns.of(rows, faster))[0] == pytest.approx(
        features(rows, GpuColumns.of(rows, shipped()))[0] / 2, rel=0.02
    )


def test_compressed_files_are_read(tmp_path: Path) -> None:
    plain = file_of("timm", tmp_path)
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed)[0].measured == pytest.approx(read(plain)[0].measured)


def test_a_model_without_a_profile_is_looked_up_by_its_name(tmp_path: Path) -> None:
    _, columns, row = EXAMPLES["timm"]
    unsaid = row.replace("4.11,11.11", ",").split(",")
    nobody = [cell.replace("resnet50", "nobody_knows_it") for cell in unsaid]
    (rows,) = read(write(tmp_path / "rows.csv", columns.split(","), [unsaid, nobody]))
    assert rows.words["model"].tolist() == ["resnet50"]


def test_an_unrecognized_file_is_refused(tmp_path: Path) -> None:
    _, columns, row = EXAMPLES["timm"]
    nobody = row.replace("4.11,11.11", ",").replace("resnet50", "nobody_knows_it").split(",")
    with pytest.raises(WrongInput, match="the operations of nobody_knows_it are unknown"):
        read(write(tmp_path / "rows.csv", columns.split(","), [nobody]))
    _, columns, row = EXAMPLES["neusight_e2e"]
    with pytest.raises(WrongInput, match="has no model of known size on one GPU; known models: bert_large"):
        read(write(tmp_path / "rows.csv", columns.split(","), [row.replace("bert_large", "new_large").split(",")]))
    _, columns, row = EXAMPLES["gpuyard"]
    with pytest.raises(WrongInput, match="line 2: the operations of torchvision/new"):
        read(write(tmp_path / "rows.csv", columns.split(","), [row.replace("resnet50", "new").split(",")]))


def test_rows_of_one_kind_from_several_files_are_merged(tmp_path: Path) -> None:
    parts = (
        read(file_of("timm", tmp_path))
        + read(file_of("gpuyard", tmp_path))
        + read(file_of("schedtune_peak_memory", tmp_path))
    )
    kinds = merge_rows(parts)
    assert {kind: len(rows) for kind, rows in kinds.items()} == {"network": 2, "memory": 2, "utilization": 1}
    assert kinds["network"].works is not None
    groups, row = kinds["network"].works.flat()
    assert groups.shape == (5, len(row))
    assert set(row.tolist()) == {0, 1}


def test_rows_with_and_without_operations_stay_aligned_when_they_are_merged(tmp_path: Path) -> None:
    """Rows of memory from a file have no operations, those of ended tasks have them."""
    (without,) = [rows for rows in read(file_of("gpuyard", tmp_path)) if rows.kind == "memory"]
    profile = OperationProfile.of([("matmul", 1, 1e9, 1e6, 1e6)])
    merged = merge_rows([without, without.of(OperationProfiles.of([profile]))])["memory"]
    assert len(merged.take(np.array([False, True]))) == 1
    assert merged.works is None or len(merged.works.index) == len(merged)


@pytest.mark.parametrize(
    ("columns", "rows", "sentence"),
    [
        (COLUMNS[:-1], [], r"has no column latency_ms \(it looks like neusight_matmul"),
        (COLUMNS, [], "has no rows"),
        (COLUMNS, [["T4", "bmm", 1, 2, 3, 4, "nan"]], "line 2: latency_ms must be a number above 0, not 'nan'"),
        (
            COLUMNS,
            [["T4", "bmm", 1, 2, 3, 4, 0.1], ["T4", "bmm", 1, "", 3, 4, 0.1]],
            "line 3: M must be a number above 0",
        ),
        (COLUMNS, [["T4", "bmm", 1]], "line 2: 3 columns, but the header has 7"),
        ((), [], "is empty"),
    ],
)
def test_an_error_in_a_file_is_reported_with_its_place(
    columns: Sequence[str], rows: Sequence[Sequence[object]], sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    write(file, columns, rows) if columns else file.write_text("")
    with pytest.raises(WrongInput, match=f"rows.csv.*{sentence}"):
        read(file)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv.gz"
    file.write_bytes(b"\x00\x01 no gzip")
    with pytest.raises(WrongInput, match="is not a CSV table"):
        read(file)
