"""Task requests: their meaning, invalid ones, and the answer for a task."""

import json

import msgspec
import pytest

from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.task import Estimate, Resources, Share, SubmitProcess, TaskSpec
from gpuyard.core.domain.values import Link, NodeId, OnLost, Preemption, TaskClass, TaskId, TaskStatus, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.wire.task_answers import TaskAnswer, answer_of
from gpuyard.live.wire.tasks import (
    MOST_BYTES,
    BatchLimit,
    TaskRequest,
    format_priority,
    parse_task_id,
    read_batch,
    read_large_batch,
    read_task,
    run_limits_of,
    specs_of,
)


def spec(**fields: object) -> TaskSpec:
    [only] = specs_of(read_task(msgspec.json.encode({"command": "true", **fields})), default_tenant="team")
    return only


def resources(**fields: object) -> Resources:
    return spec(**fields).resources


def answer(of: TaskSpec, **more: object) -> TaskAnswer:
    fields: dict[str, object] = {
        "status": TaskStatus.PENDING, "priority": of.priority, "submitted_at": 1_700_000_000.25, "started_at": None,
        "finished_at": None, "exit_code": None, "signal": None, "attempts": 0, "placement": None, "reason": None,
        "reason_code": None, "created_by": "alice",
    }  # fmt: skip
    return answer_of(TaskId(7), of, **{**fields, **more})  # type: ignore[arg-type]


def complaint(**fields: object) -> WrongRequest:
    with pytest.raises(WrongRequest) as wrong:
        spec(**fields)
    assert str(wrong.value).endswith((".", "?"))
    return wrong.value


def test_the_legacy_request_is_an_online_task_with_two_gpus() -> None:
    body = b'{"priority": "high", "gpu_count": 2, "command": "python train.py --epochs 100"}'
    [task] = specs_of(read_task(body), default_tenant="default", user="alice")
    assert task == TaskSpec(
        TenantId("default"),
        Resources(gpus=2),
        user="alice",
        task_class=TaskClass.ONLINE,
        priority=80,
        priority_in_words=True,
        command="python train.py --epochs 100",
    )


def test_every_field_reaches_the_task() -> None:
    task = spec(
        priority=7, gpu_count=4, gpu_model=["A100", "H100"], gpu_speeds={"H100": 2, "A100": 1}, command=["python", "a.py"], env={"B": "2", "A": "1"},
        name="n", description="d", tenant_id="vision", project="p", cpu_count=8, memory_mb=1000, gpu_memory_mb=2000,
        nodes=2, labels={"rack": "a"}, timeout=60, grace=90, retries=3, depends_on=[1, "task-2", "3", "task-1"], after_any=["4"],
        work_dir="/w", secrets={"TOKEN": "hidden"}, preemption="requeue", on_lost="fence", estimated_seconds=30,
        model="llama", link="nvlink", require_fit=True, **{"class": "online"},
    )  # fmt: skip
    assert task == TaskSpec(
        TenantId("vision"),
        Resources(
            gpus=4, nodes=2, models=("A100", "H100"), gpu_memory_mib=2000, cpus=8, memory_mib=1000,
            labels=(("rack", "a"),), link=Link.NVLINK, speeds=(("A100", 1), ("H100", 2)),
        ),
        name="n", project="p", description="d", task_class=TaskClass.ONLINE, priority=7, command=("python", "a.py"),
        env=(("A", "1"), ("B", "2")), work_dir="/w", timeout_seconds=60, retries=3,
        after_success=(TaskId(1), TaskId(2), TaskId(3)), after_any=(TaskId(4),), preemption=Preemption.REQUEUE,
        on_lost=OnLost.FENCE, estimate=Estimate(30, 30, 30), require_fit=True, secrets=("TOKEN",), model_name="llama",
        grace_seconds=90,
    )  # fmt: skip
    assert "hidden" not in repr(task)


def test_every_field_can_be_null() -> None:
    nothing = dict.fromkeys((field.encode_name for field in msgspec.structs.fields(TaskRequest)), None)
    [task] = specs_of(read_task(msgspec.json.encode(nothing)), default_tenant="team")
    assert task == TaskSpec(TenantId("team"), Resources(gpus=1))


def test_an_array_is_as_many_tasks_as_it_counts() -> None:
    tasks = specs_of(read_task(b'{"command": "a", "array": {"count": 3}}'), default_tenant="team")
    assert [task.array_index for task in tasks] == [0, 1, 2]


def test_high_and_low_set_the_class_and_a_number_keeps_the_tenants() -> None:
    assert (spec(priority="low").task_class, spec(priority="low").priority) == (TaskClass.BATCH, 20)
    request = read_task(b'{"priority": 60}')
    [task] = specs_of(request, default_tenant="team", default_class=TaskClass.ONLINE)
    assert (task.task_class, task.priority) == (TaskClass.ONLINE, 60)
    [task] = specs_of(read_task(b"{}"), default_tenant="team", default_priority=30, default_timeout=9)
    assert (task.task_class, task.priority, task.timeout_seconds) == (TaskClass.BATCH, 30, 9)
    assert complaint(priority="high", **{"class": "batch"}).field == "class"
    assert spec(priority="high", **{"class": "online"}).priority == 80


def test_a_task_has_its_own_grace_or_the_default_of_the_cluster() -> None:
    request = read_task(b'{"command": "a", "grace": 2.5}')
    [task] = specs_of(request, default_tenant="team", default_grace=30, max_grace=600)
    assert task.grace_seconds == 2.5
    [task] = specs_of(read_task(b'{"command": "a"}'), default_tenant="team", default_grace=30, max_grace=600)
    assert task.grace_seconds == 30
    assert spec(command="a").grace_seconds is None
    [lease] = specs_of(read_task(b"{}"), default_tenant="team", default_grace=30)
    assert lease.grace_seconds is None


@pytest.mark.parametrize("grace", [0, -1, 1e10, "5", True])
def test_a_grace_is_a_positive_number_of_seconds(grace: object) -> None:
    assert complaint(command="a", grace=grace).field == "grace"


def test_a_grace_above_the_maximum_of_the_cluster_is_refused() -> None:
    with pytest.raises(WrongRequest, match=r"grace is 601 s; the maximum of this cluster is 600 s") as wrong:
        specs_of(read_task(b'{"command": "a", "grace": 601}'), default_tenant="team", max_grace=600)
    assert (wrong.value.code, wrong.value.field, wrong.value.status) == ("OutOfRange", "grace", 400)


def test_a_lease_has_no_process_that_could_be_given_a_grace() -> None:
    with pytest.raises(WrongRequest, match=r"grace is given, but the task has no command\."):
        specs_of(read_task(b'{"grace": 5}'), default_tenant="team")


def test_a_task_without_a_grace_is_encoded_as_before() -> None:
    assert b"grace" not in msgspec.json.encode(spec(command="a"))
    assert msgspec.json.decode(msgspec.json.encode(spec(command="a", grace=5)), type=TaskSpec).grace_seconds == 5


def test_priority_is_returned_as_it_was_sent() -> None:
    for sent in ("high", "low", 0, 20, 50, 80, 100):
        task = spec(priority=sent)
        assert format_priority(task.task_class, task.priority, task.priority_in_words) == sent


def test_a_request_is_converted_to_resources() -> None:
    assert resources() == Resources(gpus=1)
    assert resources(gpu_count=0, cpu_count=2) == Resources(cpus=2)
    assert resources(cpu_count=2) == Resources(cpus=2)
    assert resources(cpu_count=2, gpu_model="A100") == Resources(gpus=1, cpus=2, models=("A100",))
    assert resources(gpu_memory_mb=4096) == Resources(gpus=1, gpu_memory_mib=4096)
    assert resources(gpu_fraction=0.25) == Resources(share=Share(250, 0))
    assert resources(gpu_fraction=0.25, gpu_memory_mb=4096) == Resources(share=Share(250, 4096))
    assert resources(gpu_fraction=0.25, gpu_count=1) == Resources(share=Share(250, 0))
    assert resources(gpu_fraction=0, gpu_memory_mb=4096) == Resources(share=Share(0, 4096))
    assert resources(gpu_fraction=1, gpu_memory_mb=4096) == Resources(gpus=1, gpu_memory_mib=4096)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"gpu_count": 2, "gpu_fraction": 0.5}, "gpu_fraction"),
        ({"nodes": 2, "gpu_fraction": 0.5}, "nodes"),
        ({"gpu_fraction": 0}, "gpu_fraction"),
        ({"gpu_fraction": 0.0001}, "gpu_fraction"),
        ({"gpu_fraction": 1.5}, "gpu_fraction"),
        ({"gpu_count": 0}, "gpu_count"),
        ({"gpu_count": 0, "cpu_count": 1, "gpu_model": "A100"}, "gpu_model"),
        ({"gpu_count": 0, "cpu_count": 1, "gpu_speeds": {"A100": 1}}, "gpu_speeds"),
        ({"gpu_count": 0, "cpu_count": 1, "gpu_memory_mb": 1}, "gpu_memory_mb"),
        ({"gpu_count": -1}, "gpu_count"),
        ({"gpu_count": 10**30}, "gpu_count"),
        ({"command": "  "}, "command"),
        ({"command": []}, "command"),
        ({"command": ["", "a"]}, "command"),
        ({"command": None, "env": {"A": "1"}}, "command"),
        ({"command": "x" * MOST_BYTES}, "command"),
        ({"command": "é" * (MOST_BYTES // 2)}, "command"),
        ({"env": {f"V{i}": "x" * 40_000 for i in range(4)}}, "command"),
        ({"env": {"A": "1"}, "secrets": {"A": "2"}}, "secrets.A"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"env": {"": "1"}}, "env"),
        ({"work_dir": "here"}, "work_dir"),
        ({"name": "two\nlines"}, "name"),
        ({"name": "end\n"}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"tenant_id": "a/b"}, "tenant_id"),
        ({"tenant_id": ""}, "tenant_id"),
        ({"depends_on": ["task-0"]}, "depends_on[0]"),
        ({"depends_on": list(range(1, 10_002))}, "depends_on"),
        ({"array": {"count": 0}}, "array.count"),
        ({"array": {"count": 1, "step": 2}}, "array.step"),
        ({"retries": -1}, "retries"),
        ({"timeout": -1}, "timeout"),
        ({"preemption": "sometimes"}, "preemption"),
    ],
)
def test_invalid_values_are_refused_with_their_field(fields: dict[str, object], field: str) -> None:
    assert complaint(**fields).field == field


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPUYARD_TASK_ID", "GPUYARD_X", "RANK", "MASTER_ADDR"]
)
def test_reserved_variables_cannot_be_set(name: str) -> None:
    for where in ("env", "secrets"):
        wrong = complaint(**{where: {name: "x"}})
        assert (wrong.code, wrong.field) == ("ReservedName", f"{where}.{name}")


def test_a_tenant_cannot_request_more_gpu_memory_than_its_limit() -> None:
    request = read_task(b'{"gpu_memory_mb": 9000}')
    with pytest.raises(WrongRequest, match="maximum of this tenant is 8000") as wrong:
        specs_of(request, default_tenant="team", max_gpu_memory_mib=8000)
    assert (wrong.value.code, wrong.value.status) == ("QuotaForbids", 409)


def test_a_batch_names_the_invalid_task() -> None:
    with pytest.raises(WrongRequest) as wrong:
        read_batch(b'{"tasks": [{"gpu_count": 1}, {"gpu_count": "2"}]}')
    assert wrong.value.field == "tasks[1].gpu_count"
    with pytest.raises(WrongRequest, match="1 to 100,000 entries"):
        read_batch(b'{"tasks": []}')


def test_a_task_has_one_id_and_two_ways_to_write_it() -> None:
    assert parse_task_id("task-7") == parse_task_id("7") == 7
    for text in ("", "task-", "task-0", "-1", "task-07x", "７", "1" * 30, "../etc", "task-7\n", str(2**63)):
        with pytest.raises(WrongRequest) as wrong:
            parse_task_id(text)
        assert (wrong.value.code, wrong.value.status) == ("UnknownTask", 404)
        assert "\n" not in str(wrong.value)


def test_an_answer_has_both_spellings_and_keeps_the_list_of_gpus() -> None:
    placement = Placement((Slice(NodeId("a"), (0, 2)), Slice(NodeId("b"), (1,))))
    told = answer(
        spec(gpu_model="A100", depends_on=[3]), status=TaskStatus.SUCCESS, started_at=1_700_000_001.0,
        finished_at=1_700_000_002.000001, exit_code=0, attempts=2, placement=placement,
    )  # fmt: skip
    assert told.task_id == told.id == "task-7"
    assert told.allocated_gpus == told.assigned_gpus == ["a/0", "a/2", "b/1"]
    assert (told.node_id, told.node_ids) == ("a", ["a", "b"])
    assert told.created_at == "2023-11-14T22:13:20.250000Z"
    assert told.started_at == "2023-11-14T22:13:21.000000Z"
    assert told.finished_at == "2023-11-14T22:13:22.000001Z"
    assert (told.gpu_model, told.depends_on) == ("A100", ["task-3"])


def test_an_answer_can_be_sent_again_as_a_request() -> None:
    """A task copied from an answer is the same task."""
    first = spec(
        priority=3, gpu_fraction=0.5, gpu_memory_mb=10, command=["a", "b"], env={"A": "1"}, labels={"x": "y"},
        timeout=5, retries=1, work_dir="/w", estimated_seconds=4, model="m", on_lost="wait", gpu_model=["A", "B"],
        gpu_speeds={"A": 1.5, "B": 1.0},
    )  # fmt: skip
    told = msgspec.to_builtins(answer(first))
    known = {field.encode_name for field in msgspec.structs.fields(TaskRequest)}
    again = {key: value for key, value in told.items() if key in known and key not in {"secrets", "gpu_count"}}
    assert spec(**again) == first


def test_no_answer_carries_the_value_of_a_secret() -> None:
    told = answer(spec(secrets={"TOKEN": "hidden"}))
    assert told.secrets == ["TOKEN"]
    assert b"hidden" not in msgspec.json.encode(told)


def test_limits_of_a_batch_and_of_its_arrays_do_not_overlap() -> None:
    plain, array = {"command": "true"}, {"command": "true", "array": {"count": 3, "max_running": 2}}
    asked = {"tasks": [plain, array, plain, plain], "limits": [{"first": 2, "count": 2, "max_running": 1}]}
    for read in (read_batch, read_large_batch):
        batch = read(json.dumps(asked).encode())
        assert run_limits_of(batch.tasks, batch.limits) == [BatchLimit(1, 1, 2), BatchLimit(2, 2, 1)]
    for first, count, wrong in ((0, 2, "has another limit"), (2, 3, "but the batch has 4 tasks")):
        with pytest.raises(WrongRequest, match=wrong) as refused:
            run_limits_of(batch.tasks, [BatchLimit(first, count, 1)])
        assert refused.value.field == "limits[0]"


@pytest.mark.parametrize(
    "tasks",
    [
        [{"command": "true", "gpu_count": 2, "depends_on": ["tasks[1]"]}, {"command": ["a", "b"], "array": {"count": 3}}],
        [{"command": "true"}, {"command": "true", "gpu_count": "two"}],
        [{"command": "true"}, {"command": "tr\0ue"}],
        [{"command": "true", "colour": "red"}],
        [],
    ],
)  # fmt: skip
def test_a_large_batch_is_read_task_by_task_with_the_same_result(tasks: list[object]) -> None:
    body = json.dumps({"tasks": tasks}).encode()
    try:
        expected: object = read_batch(body)
    except WrongRequest as wrong:
        expected = (wrong.code, wrong.message, wrong.field)
    try:
        told: object = read_large_batch(body)
    except WrongRequest as wrong:
        told = (wrong.code, wrong.message, wrong.field)
    assert told == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"tasks": [{"gpu_count": 1, "gpu_count": 3, "command": "true"}]}',
        b'{"tasks": [{"gpu_count": 1, "command": "true", "env": {"A": "1", "A": "2"}}]}',
        b'{"tasks": [{"gpu_count": 1, "command": "true"}], "tasks": [{"gpu_count": 3, "command": "true"}]}',
        b'{"limits": [], "tasks": [{"command": "true", "submit_process": {"limits": {}}}], "limits": []}',
    ],
)
def test_a_key_that_is_given_twice_is_refused_in_large_and_small_batches(body: bytes) -> None:
    for read in (read_batch, read_large_batch):
        with pytest.raises(WrongRequest, match="is given more than once; it can have one value"):
            read(body)


def test_umask_and_limits_of_the_submitting_process_are_kept_and_reported() -> None:
    given = {"host": "a:1", "python": "/env/bin/python", "umask": 0o27, "limits": {"stack": -1, "nofile": 1024}}
    made = spec(submit_process=given)
    assert made.submit_process == SubmitProcess("a:1", "/env/bin/python", 0o27, (("nofile", 1024), ("stack", -1)))
    assert msgspec.to_builtins(answer(made).submit_process) == given
    assert spec().submit_process is None
    assert b"submit_process" not in msgspec.json.encode(spec()), "events of other tasks keep their bytes"
    assert msgspec.json.decode(msgspec.json.encode(made), type=TaskSpec) == made


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"umask": 512}, "submit_process.umask"),
        ({"umask": -1}, "submit_process.umask"),
        ({"limits": {"cpu": 1}}, "submit_process.limits"),
        ({"limits": {"nofile": -2}}, "submit_process.limits"),
        ({"python": "bin/python"}, "submit_process.python"),
        ({"shell": "zsh"}, "submit_process.shell"),
    ],
)
def test_wrong_values_of_the_submitting_process_are_refused(given: dict[str, object], field: str) -> None:
    assert (complaint(submit_process=given).field or "").startswith(field)


def test_equal_environments_are_one_object() -> None:
    first, second = spec(env={"A": "1", "B": "2"}), spec(env={"B": "2", "A": "1"})
    assert first.env is second.env


def test_a_setup_with_a_command_that_would_be_too_long_for_one_argument_is_refused() -> None:
    """The command is quoted in the text that runs the setup, and a quotation mark takes five characters there."""
    with pytest.raises(WrongRequest, match="the maximum is 131,072"):
        spec(command=["echo", "'" * 30_000], setup="true")
