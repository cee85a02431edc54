"""Task files: their tasks, defaults, sweeps and dependencies; errors name line and key."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.cli.input.dependencies import NoSuchTask
from gpuyard.cli.input.task_file import WrongTaskFile, read_tasks

TYPED: dict[str, Any] = {"command": ["tasks.yaml"], "env": None, "work_dir": "/here", "priority": None, "name": None}


def nobody(word: str) -> list[str]:
    raise NoSuchTask(word)


def read(text: str, **typed: Any) -> list[dict[str, Any]]:
    """The fields of each task that are set."""
    requests = read_tasks(text.encode(), "tasks.yaml", {**TYPED, **typed}, nobody).requests
    return [{key: value for key, value in one.items() if value is not None} for one in requests]


def test_one_task_with_units() -> None:
    text = """
    command: [python, train.py, --lr, 0.1]
    name: train
    gpus: A100:2
    gpu_memory: 24G
    memory: 8GB
    timeout: 2h
    class: online
    env: {A: 1, B: x}
    array: 3
    """
    assert read(text) == [{
        "command": ["python", "train.py", "--lr", "0.1"], "name": "train", "gpu_count": 2, "gpu_model": "A100",
        "gpu_memory_mb": 22856, "memory_mb": 8192, "timeout": 7200.0, "task_class": "online", "env": {"A": "1", "B": "x"},
        "array": {"count": 3}, "work_dir": "/here",
    }]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        """
        tasks:
          - {name: train, command: "t --lr {lr} {ok}", sweep: {lr: [1e-3, 1.50, 1e-3], ok: [true]}}
        """,
        """
        name: train
        command: [t, --lr, "{lr}", "{ok}"]
        sweep: {lr: [1e-3, 1.50, 1e-3], ok: true}
        """,
        """{"name": "train", "command": "t --lr {lr} {ok}", "sweep": {"lr": [1e-3, 1.50, 1e-3], "ok": [true]}}""",
    ],
)
def test_values_of_a_sweep_are_used_as_they_are_written(text: str) -> None:
    found = read(text)
    assert [one["name"] for one in found] == [f"train[lr={lr},ok=true]" for lr in ("1e-3", "1.50", "1e-3")]
    assert found[0]["command"] in ("t --lr 1e-3 true", ["t", "--lr", "1e-3", "true"])


def test_numbers_in_commands_and_variables_are_used_as_they_are_written() -> None:
    [one] = read("command: [t, 1e-3, 010]\nenv: {LR: 1e-4, N: 7}")
    assert (one["command"], one["env"]) == (["t", "1e-3", "010"], {"LR": "1e-4", "N": "7"})


def test_dependencies_by_name_come_first_and_mean_all_tasks_of_a_sweep() -> None:
    text = """
    defaults: {gpus: 1, env: {A: "1"}}
    tasks:
      - {name: report, command: "report", after_any: [train, task-7, 8], gpus: 0, cpu_count: 1}
      - {name: train, command: "train {lr}", sweep: {lr: [1, 2]}, depends_on: prepare, env: {B: "2"}}
      - {name: prepare, command: prepare}
    """
    tasks = read(text)
    assert [one["name"] for one in tasks] == ["prepare", "train[lr=1]", "train[lr=2]", "report"]
    assert [one.get("depends_on") for one in tasks] == [None, ["tasks[0]"], ["tasks[0]"], None]
    assert tasks[3]["after_any"] == ["tasks[1]", "tasks[2]", "task-7", "8"]
    assert [one["gpu_count"] for one in tasks] == [1, 1, 1, 0]
    assert tasks[1]["env"] == {"A": "1", "B": "2", "GPUYARD_PARAM_LR": "1"}


def test_tasks_by_name_and_json() -> None:
    assert [one["name"] for one in read("tasks: {b: {command: x}, a: {command: y, depends_on: b}}")] == ["b", "a"]
    assert read('{"command": "x", "work_dir": "/data"}') == [{"command": "x", "work_dir": "/data"}]


def test_options_of_the_command_line_override_the_file() -> None:
    typed = {"timeout": 60.0, "priority": "high", "env": {"PATH": "/typed", "A": "typed"}}
    (one,) = read("command: x\ntimeout: 2h\npriority: low\nenv: {A: file, B: file, PATH: /file}", **typed)
    assert (one["timeout"], one["priority"], one["env"]) == (
        60.0,
        "high",
        {"PATH": "/typed", "A": "typed", "B": "file"},
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("command: x\ngpu_cout: 1", "line 2: 'gpu_cout' is not a key of a task; did you mean gpu_count"),
        ("tasks:\n- command: x\n  timeout: 2:00", r"line 3: tasks\[0\].timeout is '2:00'; .* write 2h0m or 2m0s"),
        ("tasks:\n- command: x\n- name: y", r"line 3: tasks\[1\] has no command"),
        ("tasks:\n- command: x\n  depends_on: [trian]\n- {name: train, command: y}", "line 3: .* did you mean 'train'"),
        ("tasks:\n- {name: a, command: x, depends_on: b}\n- {name: b, command: x, depends_on: a}", "circle"),
        ("tasks:\n- {name: a, command: x}\n- {name: a, command: x}", "line 3: .*given twice"),
        ("tasks:\n- {command: x, priority: 500}", r"line 2: tasks\[0\]: priority is 500"),
        ("tasks:\n- {command: x, env: {A: true}}", "line 2: .*write it in quotes"),
        ("tasks:\n- command: t {lr}\n  sweep: {seed: [1]}", "line 3: .*did you mean|line 3: .*Unknown placeholder"),
        ("tasks:\n- {command: x, gpus: 1, gpu_count: 1}", "mean the same"), ("tasks:\n- {command: x, sweep: 3}", "lists of values"),
        ("tasks:\n- {command: 'x {i}', sweep: {i: [1]}, array: 2}", "cannot be an array"), ("tasks: []", "tasks is empty"),
        ("defaults: {name: a}\ntasks:\n- command: x", "line 1: name cannot be a default"), ("tasks: 3", "a list of tasks"),
        ("task:\n- command: x", "'task' is not a key"), ("[1]", "keys and values"), ("", "empty"), ("a: [", "line 1"), ("x", "keys and values"),
        ("tasks:\n- {command: x}\nname: y", "line 3: 'name' is not a key of a task file"), ("command: x\ncommand: y", "line 2"),
        ("command: 'x {i}'\nsweep: {i: 0..20000}", "line 2: .*maximum"), ("command: x\ndepends_on: {a: 1}", "line 2: depends_on must be"),
        ("command: x\nzip: 3", "true or false"), ("command: x\ngpus: H100,A100", "--any-of"),
    ],
)  # fmt: skip
def test_wrong_files_are_refused_with_line_and_key(text: str, sentence: str) -> None:
    with pytest.raises(WrongTaskFile, match=sentence) as refused:
        read(text)
    assert str(refused.value).startswith("tasks.yaml")
    assert "\n" not in str(refused.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["tasks", "defaults", "command", "name", "sweep", "env", "depends_on", "gpus", "timeout", "zip"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_document_is_a_task_file_or_is_refused(value: Any) -> None:
    import json

    try:
        requests = read(json.dumps(value))
    except WrongTaskFile:
        return
    assert all(one["command"] for one in requests) or requests
