"""Native traces, in samples of a few rows that have the columns and the oddities of the originals."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard import cli
from gpuyard.core.domain.errors import WrongInput
from gpuyard.simulator import convert_trace, trace_jobs
from gpuyard.simulator.workloads.converters import TRACE_FORMATS
from gpuyard.simulator.workloads.converters import philly as philly_format

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
11,u1,vcA,1,4,1,COMPLETED,2020-09-01 00:00:10,2020-09-01 00:00:10,2020-09-01 01:00:10,3600,0
12,u2,vcB,16,64,2,FAILED,2020-08-31 23:00:00,2020-09-01 00:00:00,2020-09-01 00:00:30,30,3600
13,u1,vcA,0,4,1,COMPLETED,2020-09-01 00:01:00,2020-09-01 00:01:00,2020-09-01 00:02:00,60,0
14,u3,vcOld,8,32,1,CANCELLED,2020-09-26 23:59:59,2020-09-27 00:00:00,2020-09-27 00:01:00,60,1
15,u3,vcA,8,32,1,CANCELLED,2020-09-27 00:00:00,2020-09-27 00:00:00,2020-09-27 00:01:00,60,0
"""
GPU_NUMBER = "date,vcA,vcB,vcOld,vcNone,total\n2020-09-09,8,8,8,0,24\n2020-09-10,16,24,8,0,48\n"
PHILLY = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:09",
                "end_time": "2017-10-07 01:13:23",
                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}, {"ip": "m48", "gpus": ["gpu0", "gpu1"]}],
            },
            {
                "start_time": "2017-10-07 01:13:30",
                "end_time": "2017-10-07 01:14:00",
                "detail": [{"ip": "m412", "gpus": ["gpu0"]}],
            },
            {"start_time": "2017-10-07 01:20:00", "end_time": None, "detail": []},
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
    },
    {"status": "Killed", "vc": "b43600", "jobid": "2", "attempts": [], "submitted_time": "2017-10-07 02:00:00", "user": "a"},
    {
        "status": "Failed",
        "vc": "b43600",
        "jobid": "3",
        "attempts": [
            {"start_time": "2017-10-07 00:00:10", "end_time": "2017-10-07 00:00:20", "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}
        ],
        "submitted_time": "2017-10-07 00:00:00",
        "user": "b",
    },
    {
        "status": "Pass",
        "vc": "b43600",
        "jobid": "4",
        "attempts": [{"start_time": "None", "end_time": "2017-10-07 00:00:20", "detail": []}],
        "submitted_time": "2017-10-07 00:00:00",
        "user": "b",
    },
]  # fmt: skip
PAI_TASKS = """\
job1,worker,4.0,Terminated,1000.0,1600.0,600.0,29.3,200.0,V100
job1,ps,1.0,Terminated,1000.0,1600.0,600.0,29.3,,
job2,tensorflow,1.0,Failed,2000.0,2010.0,600.0,29.3,25.0,MISC
job3,tensorflow,3.0,Terminated,2500.0,2600.0,600.0,29.3,50.0,T4
job4,tensorflow,1.0,Running,2600.0,,600.0,29.3,100.0,T4
"""
PAI_JOBS = """\
job1,0a1,alice,Terminated,900.0,1600.0
job2,0a2,bob,Failed,1990.0,2010.0
job3,0a3,alice,Terminated,2499.0,2600.0
"""
PAI_SIMULATOR = """\
job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user
1,1,5,6.0,0.5,MISC,120.0,alice
2,2,7,12.0,8.0,V100,60.0,bob
3,1,8,12.0,0.0,CPU,60.0,bob
"""
SEREN = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
51,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
52,u5907,0,0,16,Other,COMPLETED,2023-03-01 00:23:58+08:00,2023-03-01 00:24:11+08:00,2023-03-01 01:09:04+08:00,2693,13,0.0
"""
KALOS = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,fail_time,stop_time,duration,queue,gpu_time
dlc1,uf794,8,64,960,1000,100.0,Pretrain,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0
dlc2,uf794,1,1,15,1000,100.0,Evaluation,RUNNING,2023-05-17 12:00:00+00:00,,,,,,,
"""


def converted(kind: str, source: Path, **more: Any) -> list[str]:
    target = source.parent / "converted.csv"
    convert_trace(kind, source, target, **more)
    head, *rows = target.read_text().splitlines()
    assert head == "submit_s,duration_s,gpu_num,user,vc,name,state,gpu_fraction"
    return rows


@pytest.fixture
def helios(tmp_path: Path) -> Path:
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    return path


def test_helios_is_converted_and_sorted(helios: Path) -> None:
    assert converted("helios", helios) == [
        "0,30,16,u2,vcB,,FAILED,",
        "3610,3600,1,u1,vcA,,COMPLETED,",
        "2249999,60,8,u3,vcOld,,CANCELLED,",
        "2250000,60,8,u3,vcA,,CANCELLED,",
    ]


def test_a_window_counts_from_its_begin_and_excludes_its_end(helios: Path) -> None:
    rows = converted("helios", helios, begin="2020-09-01", end="2020-09-27", rename_vc={"vcOld": "vcA"})
    assert rows == ["10,3600,1,u1,vcA,,COMPLETED,", "2246399,60,8,u3,vcA,,CANCELLED,"]
    assert converted("helios", helios, begin="2020-08-31T23:00", end="2020-09-01") == ["0,30,16,u2,vcB,,FAILED,"]


def test_names_of_jobs_are_kept_if_the_file_has_them(helios: Path) -> None:
    helios.write_text(
        "user,vc,jobname,gpu_num,state,submit_time,duration\nu1,v,train,1,COMPLETED,2020-09-01 00:00:10,5\n"
    )
    assert converted("helios", helios) == ["0,5,1,u1,v,train,COMPLETED,"]


def test_philly_is_read_from_its_list_of_jobs(tmp_path: Path) -> None:
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(PHILLY, indent=4))
    expected = ["0,10,1,b,b43600,,Failed,", "4299,104,4,ce2f4c,ee9e8c,,Pass,"]
    assert converted("philly", path) == expected
    path.write_bytes(gzip.compress(json.dumps(PHILLY).encode()))
    assert converted("philly", path) == expected
    path.write_text("[]")
    with pytest.raises(WrongInput, match=r"^No job is left of cluster_job_log\.$"):
        converted("philly", path)


def test_a_list_of_jobs_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(PHILLY, indent=1))
    for size in (1, 7, 100):
        monkeypatch.setattr(philly_format, "CHUNK", size)
        assert len(converted("philly", path)) == 2


def test_the_reduced_table_of_philly_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 06:13:03,2951.0,2,5902.0,6214e9\n2017-10-08 06:13:03,2951.0,0,0,6214e9\n"
    )
    assert converted("philly", path, begin="2017-10-09") == ["22383,2951,2,,6214e9,,,", "25315,66,1,,11cb48,,,"]


def test_pai_is_read_from_its_tables(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "pai_task_table.csv").write_text(PAI_TASKS)
    without_jobs = [
        "0,600,8,,,worker,Terminated,",
        "1000,10,1,,,tensorflow,Failed,0.25",
        "1500,100,2,,,tensorflow,Terminated,",
    ]
    assert converted("pai", folder) == without_jobs
    (folder / "pai_job_table.csv").write_text(PAI_JOBS)
    with_jobs = [
        "0,600,8,alice,,worker,Terminated,",
        "1090,10,1,bob,,tensorflow,Failed,0.25",
        "1599,100,2,alice,,tensorflow,Terminated,",
    ]
    assert converted("pai", folder) == with_jobs
    head = "job_name,inst_id,user,status,start_time,end_time\n"
    (folder / "pai_job_table.csv").write_text(head + PAI_JOBS)
    assert converted("pai", folder) == with_jobs
    assert converted("pai", folder, begin="15m", end="2400s") == [
        "0,600,8,alice,,worker,Terminated,",
        "1090,10,1,bob,,tensorflow,Failed,0.25",
    ]


def test_pai_is_read_from_the_table_of_its_simulator(tmp_path: Path) -> None:
    path = tmp_path / "pai_job_no_estimate_100K.csv"
    path.write_text(PAI_SIMULATOR)
    assert converted("pai", path) == ["0,120,1,alice,,,,0.5", "2,60,16,bob,,,,"]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        (SEREN, "0,117,8,u5907,,Other,FAILED,"),
        (KALOS, "0,8,64,uf794,,Pretrain,FAILED,"),
    ],
)
def test_acme_is_read_with_the_run_time_from_start_to_end(tmp_path: Path, text: str, row: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    assert converted("acme", path) == [row]


def test_a_converted_trace_is_simulated_on_its_virtual_clusters(
    helios: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers, jobs, nodes = (helios.with_name(name) for name in ("cluster_gpu_number.csv", "jobs.csv.gz", "nodes.csv"))
    numbers.write_text(GPU_NUMBER)
    rename = ("--rename-vc", "vcOld=vcA")
    commands = (
        ("trace", "convert", "helios", helios, jobs, "--from", "2020-08-31", "--to", "2020-09-27", *rename),
        ("trace", "nodes", numbers, nodes, "--date", "2020-09-10", *rename),
        ("simulate", "--trace", jobs, "--nodes", nodes, "--pool", "vc", "--policy", "fifo", "--json"),
    )
    for words in commands:
        monkeypatch.setattr("sys.argv", ["gpuyard", *map(str, words)])
        assert cli.main() == 0
    said = capsys.readouterr()
    assert nodes.read_text() == "vc,nodes,gpus_per_node\nvcA,2,8\nvcB,3,8\n"
    assert json.loads(said.out)["policies"]["fifo"]["jobs"] == 3
    assert "1 jobs outside the window were omitted." in said.err
    assert f"Written: {jobs}, 3 jobs of 26.0 days, which request 0 GPUs on average." in said.err
    assert f"Written: {nodes}, 5 nodes of 2 virtual clusters on 2020-09-10." in said.err


def test_fractions_survive_until_the_simulation(tmp_path: Path) -> None:
    path = tmp_path / "pai.csv"
    path.write_text(PAI_SIMULATOR)
    convert_trace("pai", path, tmp_path / "jobs.csv")
    assert trace_jobs(tmp_path / "jobs.csv", "2x8").workload.tasks == 2


@pytest.mark.parametrize(
    ("kind", "text", "more", "sentence"),
    [
        ("helios", "a,b\n1,2\n", {}, "line 1: column user is missing; the file has: a, b."),
        ("helios", HELIOS.replace("2020-09-01 00:00:10", "yesterday", 1), {}, "line 2: 'yesterday' is not a date and time."),
        ("helios", HELIOS.replace(",3600,0", ",-5,0", 1), {}, "line 2: duration is -5; it must be 0 or more."),
        ("helios", HELIOS.replace("vcA,1,", "vcA,many,", 1), {}, "line 2: gpu_num is 'many'; it must be a number."),
        ("helios", HELIOS.replace("vcA,1,", "vcA,9e9,", 1), {}, "GPUs are more than 1,000,000."),
        ("helios", HELIOS, {"begin": "14d"}, "begin is '14d'; it must be a date such as 2020-09-01"),
        ("helios", HELIOS, {"end": "2020-13-01"}, "end: '2020-13-01' is not a date and time."),
        ("helios", HELIOS, {"begin": "2021-01-01"}, "No job is left of trace: 4 jobs outside the window were omitted; 1 jobs without"),
        ("helios", HELIOS, {"rename_vc": {"a": 1}}, "rename_vc"),
        ("pai", PAI_SIMULATOR, {"begin": "2020-07-01"}, "pai has no dates, so it must be a time such as 14d or 86400."),
        ("pai", PAI_TASKS, {}, "line 1: column num_inst is missing"),
        ("philly", '[{"status": "Pass"}]', {}, "job 1: it has not the form of the Philly trace: KeyError('submitted_time')."),
        ("philly", '[{"status": "Pa', {}, "the list is truncated or damaged after job 0."),
        ("philly", "", {}, "column timestamp is missing"),
        ("acme", HELIOS, {}, "column type is missing"),
        ("slurm", "", {}, 'kind is "slurm"; it must be'),
    ],
)  # fmt: skip
def test_wrong_traces_are_one_sentence(
    tmp_path: Path, kind: str, text: str, more: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(WrongInput) as caught:
        converted(kind, path, **more)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "converted.csv").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("convert", "helios", "IN", "none/out.csv"), "Cannot write none/out.csv; use a file in a folder that exists."),
        (("convert", "helios", "IN", "IN"), "IN and OUT are the same file."),
        (("convert", "helios", "IN", "OUT", "--rename-vc", "vcA"), "--rename-vc is 'vcA'; it must be OLD=NEW"),
        (("convert", "helios", "none.csv", "OUT"), "File none.csv does not exist."),
        (("convert", "pai", "FOLDER", "OUT"), "There is no pai_task_table.csv in"),
        (("nodes", "IN", "OUT", "--date", "September"), "The day is 'September'; it must be a date such as 2020-09-10."),
        (("nodes", "NUMBERS", "OUT", "--date", "2021-01-01"), "there is no row for 2021-01-01; it has 2020-09-09 to 2020-09-10."),
    ],
)  # fmt: skip
def test_wrong_commands_are_one_sentence(
    helios: Path,
    words: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(helios.parent)
    helios.rename("IN")
    Path("NUMBERS").write_text(GPU_NUMBER)
    Path("FOLDER").mkdir()
    monkeypatch.setattr("sys.argv", ["gpuyard", "trace", *words])
    assert cli.main() == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not Path("OUT").exists()


def test_every_format_says_where_its_originals_are() -> None:
    page = (Path(__file__).parents[3] / "docs/manual/traces.md").read_text()
    for kind, found in TRACE_FORMATS.items():
        assert f"`{kind}`" in page
        assert found.address.split(" ")[0].rstrip(",;") in page
