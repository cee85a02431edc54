"""Reading recorded jobs: valid rows are read, invalid ones are named with their line."""

import gzip
import os
from pathlib import Path

import pytest

from gpuyard.simulator.workloads import trace
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.trace import WrongTrace, read_trace, write_trace

FRACTIONS = "submit_s,duration_s,gpu_num,gpu_fraction\n"
HEAD = "job_id,user,vc,gpu_num,submit_s,duration_s\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "jobs.csv"
    path.write_text(text)
    return path


def test_jobs_are_read_with_their_users_and_pools(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + "1,ann,left,2,0,60\n2,bob,right,8,5.5,1e3\n")
    assert read_trace(path, "vc").jobs == [Job(0.0, 60.0, 2, "ann", "left"), Job(5.5, 1000.0, 8, "bob", "right")]


def test_a_trace_may_have_the_commands_of_its_jobs(tmp_path: Path) -> None:
    path = written(tmp_path, 'submit_s,duration_s,gpu_num,command\n0,60,1,"python a.py --x 1,2"\n1,60,1,\n')
    assert [job.command for job in read_trace(path).jobs] == ["python a.py --x 1,2", ""]


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress((HEAD + "1,ann,left,2,0,60\n").encode()))
    assert len(read_trace(path).jobs) == 1


def test_unordered_rows_are_sorted_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HEAD + "1,a,v,1,9,1\n2,a,v,1,3,2\n3,a,v,1,5,3\n"))
    assert [job.submit for job in trace.jobs] == [3.0, 5.0, 9.0]
    assert trace.sorted_rows == 1


def test_jobs_without_gpus_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HEAD + "1,a,v,0,9,1\n2,a,v,1,10,2\n"))
    assert (len(trace.jobs), trace.without_gpus) == (1, 1)


def test_a_job_may_request_a_part_of_a_gpu(tmp_path: Path) -> None:
    jobs = read_trace(written(tmp_path, FRACTIONS + "0,60,1,0.25\n0,60,1,\n0,60,4,1\n")).jobs
    assert [job.fraction_milli for job in jobs] == [250, 1000, 1000]


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.csv.gz"])
def test_a_written_trace_is_read_back_unchanged(tmp_path: Path, name: str) -> None:
    jobs = [Job(0.1, 60.123, 2, "ann", "", "train"), Job(7.0, 5.0, 1, 'b, "ob"', "", "", 250)]
    write_trace(tmp_path / name, jobs)
    once = (tmp_path / name).read_bytes()
    assert read_trace(tmp_path / name).jobs == jobs
    write_trace(tmp_path / name, jobs)
    assert (tmp_path / name).read_bytes() == once


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("submit_s,gpu_num\n1,2\n", "line 1: column duration_s is missing; the file has: submit_s, gpu_num."),
        ("", "line 1: column submit_s is missing; the file has: nothing."),
        (HEAD, "the file contains no jobs with GPUs."),
        (HEAD + "1,a,v,1,0,5\n2,a,v,1,-3,5\n", "line 3: submit_s is -3; it must be between 0 and 1e+10."),
        (HEAD + "1,a,v,1,0,nan\n", "line 2: duration_s is nan; it must be between 0 and 1e+09."),
        (HEAD + "1,a,v,1,0,long\n", "line 2: duration_s is 'long'; it must be a number."),
        (HEAD + "1,a,v,1.5,0,9\n", "line 2: gpu_num is '1.5'; it must be a whole number."),
        (FRACTIONS + "0,5,1,2\n", "line 2: gpu_fraction is 2; it must be between 0 and 1."),
        (FRACTIONS + "0,5,1,0.0001\n", "line 2: gpu_fraction is 0.0001; it must be at least 0.001."),
        (FRACTIONS + "0,5,2,0.5\n", "line 2: gpu_fraction is 0.5 with 2 GPUs; only one GPU can be shared."),
        (HEAD + "1,a,v,1,0,1e400\n", "line 2: duration_s is 1e400; it must be between 0 and 1e+09."),
        (
            HEAD + "1,a,v,99999999999999999999,0,1\n",
            "line 2: gpu_num is 99999999999999999999; it must be between 0 and 1e+06.",
        ),
        ("submit_s,duration_s,gpu_num,gpu_num\n0,5,1,2\n", "line 1: there are 2 columns gpu_num."),
        (HEAD + '1,"a,v,1,0,5\n', "line 2: this is not comma-separated text: unexpected end of data."),
        (HEAD + "1,a,v,1,0,5\n" + "x" * 100_001, "line 3: it is longer than 100,000 bytes."),
        (HEAD + "1,a,v,1,0\n", "line 2: it has 5 fields, but the header has 6."),
    ],
)
def test_invalid_rows_are_an_error_with_the_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(WrongTrace) as wrong:
        read_trace(written(tmp_path, text))
    assert str(wrong.value).endswith(sentence)


def test_a_line_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes((HEAD + "1,ann,v,1,0,5\n").encode() + b"2,\xff\xfe,v,1,0,5\n")
    with pytest.raises(WrongTrace, match=r"line 3: this is not UTF-8\."):
        read_trace(path)


def test_a_file_without_line_breaks_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(gzip.compress(bytes(10_000_000)))
    with pytest.raises(WrongTrace, match=r"jobs\.csv, line 1: it is longer than 100,000 bytes"):
        read_trace(path)


def test_a_folder_a_pipe_and_a_device_are_no_trace(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, why in ((tmp_path, "Is a directory"), (pipe, "this is a pipe"), (Path("/dev/zero"), "this is a device")):
        with pytest.raises(WrongTrace, match=f"cannot be read: {why}"):
            read_trace(path)


def test_a_trace_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "LARGEST_BYTES", 2 * 1024**2)
    path = tmp_path / "jobs.csv"
    path.write_bytes(gzip.compress(b"submit_s,duration_s,gpu_num\n" + b"\n" * 3 * 1024**2))
    with pytest.raises(WrongTrace, match="the file is larger than 2 MiB"):
        read_trace(path)


def test_files_written_by_spreadsheets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"\xef\xbb\xbfsubmit_s,duration_s,gpu_num\r\n0,60,2\r\n")
    assert read_trace(path).jobs == [Job(0.0, 60.0, 2)]


def test_compression_is_detected_from_the_content(tmp_path: Path) -> None:
    text = (HEAD + "1,ann,left,2,0,60\n").encode()
    for name, content in (("packed.csv", gzip.compress(text)), ("plain.csv.gz", text)):
        (tmp_path / name).write_bytes(content)
        assert len(read_trace(tmp_path / name).jobs) == 1


def test_a_job_without_a_pool_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongTrace, match="line 2: vc is empty; it must be the pool of the job"):
        read_trace(written(tmp_path, HEAD + "1,a,,1,0,5\n"), "vc")


def test_an_unknown_pool_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongTrace, match="column team is missing; the file has"):
        read_trace(written(tmp_path, HEAD + "1,a,v,1,0,5\n"), "team")


def test_a_truncated_compressed_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(
        (HEAD + "".join(f"{n},user{n * 7919 % 97},v,1,{n},{n * 31 % 1000}\n" for n in range(5000))).encode()
    )
    path = tmp_path / "jobs.csv.gz"
    for size in (len(whole) - 3, len(whole) // 2, 5):
        path.write_bytes(whole[:size])
        with pytest.raises(WrongTrace, match="truncated or damaged"):
            read_trace(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongTrace, match="does not exist"):
        read_trace(tmp_path / "none.csv")
