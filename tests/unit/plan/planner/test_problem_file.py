"""Problem files: what is read, and the errors of invalid ones."""

import json
from typing import Any

import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.generate import generate
from gpuyard.plan.planner.instance import write_instance
from gpuyard.plan.planner.problem_file import problem_of, read_problem

USERS = """
models:
  chat: {memory_gb: 16, gpus_required: 1, load_time_seconds: 3.5}
  judge: {memory_gb: 64, gpus_required: 2}
workflows:
  - workflow_id: answer
    nodes:
      - {node_id: 1, model_name: chat, estimated_time: 4}
      - {node_id: 2, model_name: judge, estimated_time: 7.5}
      - {node_id: 3, model_name: chat, estimated_time: 1}
    edges: [[1, 2], {from: 2, to: 3}]
requests:
  - {request_id: r0, workflow_id: answer}
  - {request_id: r1, workflow_id: answer, node_execution_times: {2: 9.0}, arrival_time: 30}
gpus: 4
"""


def test_the_documented_yaml_problem_is_read() -> None:
    problem = read_problem(USERS.encode())
    assert [(m.name, m.memory_gb, m.gpus, m.load_s) for m in problem.models] == [("chat", 16, 1, 3.5), ("judge", 64, 2, 64 / 25 + 2)]  # fmt: skip
    assert problem.calls.seconds.tolist() == [4, 7.5, 1, 4, 9, 1]
    assert problem.calls.before.tolist() == [0, 1, 3, 4]
    assert problem.requests.arrival_s.tolist() == [0, 30]
    assert len(problem.gpus) == 4


def test_the_same_problem_as_json_with_other_key_names_is_equal() -> None:
    other = {
        "models": [{"name": "chat", "memory_gb": 16, "load_time": 3.5}, {"name": "judge", "memory_gb": 64, "gpus": 2}],
        "workflows": {
            "answer": {
                "description": "for people",
                "nodes": {
                    "1": {"model": "chat", "execution_time": 4},
                    "2": {"model": "judge", "execution_time": 7.5, "dependencies": ["1"]},
                    "3": {"model": "chat", "execution_time": 1, "depends_on": ["2"]},
                },
            }
        },
        "requests": {
            "r0": {"workflow": "answer"},
            "r1": {"workflow": "answer", "exec_times": [4, 9, 1], "arrival": 30},
        },
        "num_gpus": 4,
    }
    ours, theirs = read_problem(USERS.encode()), read_problem(json.dumps(other).encode())
    assert (ours.models, ours.gpus, ours.workflows, ours.requests.ids) == (theirs.models, theirs.gpus, theirs.workflows, theirs.requests.ids)  # fmt: skip
    assert np.array_equal(ours.calls.seconds, theirs.calls.seconds)


@pytest.mark.parametrize(
    ("gpus", "memory"),
    [("{count: 2, memory_gb: 80}", [80, 80]), ("[a, b]", [np.inf, np.inf]), ("[{id: 0, memory_gb: 80}, {gpu_id: 1}]", [80, np.inf])],
)  # fmt: skip
def test_gpus_are_a_count_or_a_list(gpus: str, memory: list[float]) -> None:
    problem = read_problem(USERS.replace("gpus: 4", f"gpus: {gpus}").encode())
    assert [gpu.memory_gb for gpu in problem.gpus] == memory


def test_gpus_can_be_given_separately() -> None:
    text = USERS.replace("gpus: 4", "gpus: [{id: a, memory_gb: 80}, {id: b, memory_gb: 90}]").encode()
    assert [gpu.memory_gb for gpu in read_problem(text, gpus=3).gpus] == [80, 90, 80]
    assert len(read_problem(USERS.replace("gpus: 4", "").encode(), gpus=3).gpus) == 3


def instance(**changes: Any) -> bytes:
    said = {
        "format": "planner-instance/1",
        "models": {"chat": {"memory_gb": 16, "gpus": 1}},
        "gpus": [{"id": 0, "memory_gb": 40}, {"id": 1, "memory_gb": 80}, {"id": 2, "memory_gb": 40}],
        "workflows": {"w": {"nodes": [node("a"), node("b", "a"), node("c", "b")]}},
        "requests": [{"id": "r0", "workflow": "w"}],
    }
    return json.dumps(said | changes).encode()


def node(name: str, *deps: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "model": "chat", "exec_time": 1.0, "deps": list(deps)} | more


def nodes(*some: dict[str, Any]) -> bytes:
    return instance(workflows={"w": {"nodes": some}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (nodes(node("a", "c"), node("b", "a"), node("c", "b")), "workflows.w.nodes[0].deps: the nodes depend on each other in a cycle: a → b → c → a."),
        (nodes(node("a"), node("b", "b")), "workflows.w.nodes[1].deps: the nodes depend on each other in a cycle: b → b."),
        (nodes(node("a", model="chatt")), "workflows.w.nodes[0].model: unknown model 'chatt'; did you mean 'chat'?"),
        (nodes(node("a"), node("b", "x")), "workflows.w.nodes[1].deps: unknown node 'x'."),
        (nodes(node("a"), node("a")), "workflows.w.nodes[1].id: 'a' is also the id of nodes[0]."),
        (nodes(node("a", exec_time=-1)), "workflows.w.nodes[0].exec_time is -1; it must be a number of seconds from 0 to 315,360,000, ten years."),
        (nodes({"id": "a", "model": "chat"}), "requests[0]: node 'a' has no time, here or in the workflow 'w'."),
        (nodes(node("a", exec_tim=1)), 'Unknown name "exec_tim" in workflows.w.nodes[0]; did you mean "exec_time"?'),
        (nodes(), "workflows.w.nodes has 0 entries; it must be a list of at least 1 entries."),
        (instance(requests=[{"id": "r", "workflow": "v"}]), "requests[0].workflow: unknown workflow 'v'."),
        (instance(requests=[{"id": "r", "workflow": "w"}] * 2), "requests[1].id: 'r' is also the id of requests[0]."),
        (instance(requests=[{"id": "r", "workflow": "w", "exec_times": [1.0]}]), "requests[0].exec_times: there are 1 times, and 3 nodes in the workflow 'w'."),
        (instance(requests=[{"id": "r", "workflow": "w", "exec_times": [1, -2, 1]}]), "requests[0].exec_times[1] is -2; it must be a number of seconds from 0 to 315,360,000, ten years."),
        (instance(requests=[]), "requests has 0 entries; it must be a list of at least 1 entries."),
        (instance(gpus=[]), "gpus: there are none; list them in the file, or give their number with --gpus N."),
        (instance(gpus=[{"id": 0}, {"id": 0}]), "gpus[1].id: 0 is also the id of gpus[0]."),
        (instance(gpus=[{"id": 0, "levels": [{"speed": 0.9, "watts": 300}]}]), "gpus[0].levels[0].speed: this is 0.9; the first power level must be full speed, 1, and the others fractions of it."),
        (instance(models={"chat": {"memory_gb": 81, "gpus": 1}}), "models.chat: it needs 81 GB on a GPU, and the largest GPU has 80 GB."),
        (instance(models={"chat": {"memory_gb": 41, "gpus": 2}}), "models.chat: it needs 2 adjacent GPUs with 41 GB, and there are 1."),
        (instance(models={"chat": {"memory_gb": 1, "gpus": 4}}), "models.chat: it needs 4 adjacent GPUs, and there are 3."),
        (instance(format="planner-instance/2"), "format: this is 'planner-instance/2'; known is 'planner-instance/1', or no format for the workflow file format."),
        (instance().replace(b"1.0", b"NaN"), "NaN is not a number in JSON; all numbers must be finite."),
        (instance().replace(b"1.0", b"1e999"), "workflows.w.nodes[0].exec_time: this is inf; all numbers must be finite."),
        (instance().replace(b'"gpus": [', b'"models": {}, "gpus": ['), "'models' is given twice in one object; remove one of them."),
        (instance().replace(b'{"chat":', b'{"chat": {"memory_gb": 1}, "chat":'), "'chat' is given twice in one object; remove one of them."),
        (instance().replace(b'{"format"', b'{"name": "a", "name": "b", "name": "c", "format"'), "'name' is given twice in one object; remove one of them."),
        (instance().replace(b'"workflow": "w"', b'"workflow": "v", "workflow": "w"'), "'workflow' is given twice in one object; remove one of them."),
        (instance().replace(b'"exec_time"', b'"exec_time": 5, "exec_time"'), "'exec_time' is given twice in one object; remove one of them."),
        (instance().replace(b'{"id": "r0"', b'{"id": "\\u003A", "id": "r0"'), "'id' is given twice in one object; remove one of them."),
        (instance(models={"chat": {"memory_gb": 1, "load_time_s": 1e15}}), "models.chat.load_time_s is 1000000000000000.0; it must be a number of seconds from 0 to 315,360,000, ten years."),
        (instance(models={"chat": {"memory_gb": 1e7}}), "models.chat.memory_gb is 10000000.0; it must be a number from 0 to 1,000,000."),
        (instance(requests=[{"id": "r", "workflow": "w", "arrival_s": 4e8}]), "requests[0].arrival_s is 400000000.0; it must be a number of seconds from 0 to 315,360,000, ten years."),
        (instance(pcie_gb_s=1e-9), "pcie_gb_s is 1e-09; it must be a number from 0.001 to 1,000,000."),
        (instance()[:200], "line 1: the file ends too early; part of it is missing."),
        (instance().replace(b"40}", b"40)"), "line 1, column 118: this is not JSON: expecting ',' delimiter."),
        (b"", "The file is empty."),
        (b" \n", "The file is empty."),
        (b"{}", "This is not a problem: it must have models, workflows, requests and gpus."),
        (b"[1]", "This is not a problem: it must have models, workflows, requests and gpus."),
        (b"hello", "This is not a problem: it must have models, workflows, requests and gpus."),
        (b"a: \xff\xfe", "line 1: this is not UTF-8; save the file as UTF-8."),
    ],
)  # fmt: skip
def test_an_invalid_file_is_reported_in_one_sentence_with_the_place(text: bytes, said: str) -> None:
    with pytest.raises(WrongInput) as error:
        read_problem(text)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("model_name: judge", "model_name: jugde", "line 9, workflows[0].nodes[1].model_name: unknown model 'jugde'; did you mean 'judge'?"),
        ("estimated_time: 7.5", "estimated_time: -7.5", "line 9, workflows[0].nodes[1].estimated_time is -7.5; it must be a number of seconds from 0 to 315,360,000, ten years."),
        ("estimated_time: 7.5", "estimated_time: .nan", "line 9, workflows[0].nodes[1].estimated_time: this is nan; all numbers must be finite."),
        ("estimated_time: 7.5", "estimate: 7.5", 'line 9, Unknown name "estimate" in workflows[0].nodes[1]; did you mean "estimated_time"?'),
        ("estimated_time: 4", "estimatedtime: 4", 'line 8, Unknown name "estimatedtime" in workflows[0].nodes[0]; did you mean "estimated_time"?'),
        ("gpus_required: 2", "gpu_required: 2", 'line 4, Unknown name "gpu_required" in models.judge; did you mean "gpus_required"?'),
        ("edges:", "egdes:", 'line 11, Unknown name "egdes" in workflows[0]; did you mean "edges"?'),
        ("edges:", "arrows:", 'line 11, Unknown name "arrows" in workflows[0]; known names: workflow_id, nodes, edges.'),
        ("from: 2", "form: 2", 'line 11, Unknown name "form" in workflows[0].edges[1]; did you mean "from"?'),
        ("arrival_time: 30", "arival: 30", 'line 14, Unknown name "arival" in requests[1]; did you mean "arrival"?'),
        ("gpus: 4", "gpus: {count: 4, memory: 80}", 'line 15, Unknown name "memory" in gpus; did you mean "memory_gb"?'),
        ("gpus: 4", "ngpus: 4", 'line 15, Unknown name "ngpus" in the file; did you mean "gpus"?'),
        ("[1, 2]", "[1, 5]", "line 11, workflows[0].edges[0]: the workflow has no node '5'."),
        ("[1, 2]", "[1, 2, 3]", "line 11, workflows[0].edges[0]: an edge is a pair of nodes, [a, b] or {from: a, to: b}."),
        ("{from: 2, to: 3}", "[2, 1]", "line 8, workflows[0].nodes[0].deps: the nodes depend on each other in a cycle: 1 → 2 → 1."),
        ("{2: 9.0}", "{7: 9.0}", "line 14, requests[1].node_execution_times.7: the workflow 'answer' does not have this node."),
        ("gpus_required: 2", "gpus_required: 0", "line 4, models.judge.gpus_required is 0; it must be a whole number from 1 to 1,000,000."),
        ("gpus_required: 2", "gpus_required: 2, gpus: 2", "line 4, models.judge.gpus: this and 'gpus_required' mean the same; remove one of them."),
        ("gpus_required: 2", "gpus_required: 5", "line 4, models.judge: it needs 5 adjacent GPUs, and there are 4."),
        ("  judge:", "  chat:", "line 4: models.chat is given twice, first in line 3; remove one of them."),
        ("gpus: 4", "gpus: 0", "line 15, gpus: there are none; list them in the file, or give their number with --gpus N."),
        ("gpus: 4", "gpus: [", "line 16: the file ends too early, in the block that begins on line 16; part of it is missing."),
        ("models:", "models: :", "line 2: this is not YAML: mapping values are not allowed here; check the indentation and quotes there."),
        (", estimated_time: 4}", "}", "line 14, requests[1].node_execution_times: node '1' has no time, here or in the workflow."),
    ],
)  # fmt: skip
def test_errors_use_the_words_of_the_file_and_its_line(old: str, new: str, said: str) -> None:
    assert old in USERS
    with pytest.raises(WrongInput) as error:
        read_problem(USERS.replace(old, new).encode())
    assert str(error.value) == said


@pytest.mark.parametrize("figure", ["1e1", "1E+1", "1.0e1", "10"])
def test_numbers_in_yaml_may_be_written_in_common_forms(figure: str) -> None:
    assert read_problem(USERS.replace("7.5", figure).encode()).calls.seconds[1] == 10.0


def test_fast_and_careful_reading_agree() -> None:
    text = write_instance(generate("agentic", 300, 4))
    careful = read_problem(text.replace(b'"format":"planner-instance/1",', b"", 1))
    assert np.array_equal(read_problem(text).calls.seconds, careful.calls.seconds)
    assert np.array_equal(read_problem(text).calls.before, careful.calls.before)


def test_a_request_may_run_nodes_in_any_order_of_the_file() -> None:
    problem = read_problem(nodes(node("late", "soon"), node("soon")))
    assert problem.workflows[0].before == ((1,), ())


def test_reading_equals_converting_an_instance() -> None:
    drawn = generate("tiny", 50, 3)
    assert read_problem(write_instance(drawn)).workflows == problem_of(drawn).workflows


def test_a_count_stands_for_that_number_of_equal_requests() -> None:
    alike = USERS.replace("{request_id: r0, workflow_id: answer}", "{request_id: r0, workflow_id: answer, count: 400}")
    problem = read_problem(alike.encode())
    assert problem.requests.ids[:2] == ("r0-0", "r0-1")
    assert problem.requests.ids[-2:] == ("r0-399", "r1")
    assert len(problem.calls) == 3 * 401
    assert problem.calls.seconds[-3:].tolist() == [4, 9, 1]


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "many", "true", "1000001"])
def test_a_count_that_is_no_number_of_requests_is_refused(count: str) -> None:
    alike = USERS.replace(
        "{request_id: r0, workflow_id: answer}", f"{{request_id: r0, workflow_id: answer, count: {count}}}"
    )
    with pytest.raises(
        WrongInput, match=r"line 13, requests\[0\]\.count: this is .*; it must be a whole number from 1 to"
    ):
        read_problem(alike.encode())


def test_an_error_in_a_request_after_a_count_names_its_own_line() -> None:
    alike = USERS.replace("workflow_id: answer}\n", "workflow_id: answer, count: 3}\n").replace(
        "workflow_id: answer, node_execution_times", "workflow_id: ansver, node_execution_times"
    )
    with pytest.raises(WrongInput, match=r"line 14, requests\[1\]\.workflow_id: unknown workflow 'ansver'"):
        read_problem(alike.encode())


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ("r0, count: 3", "r0-1", "line 14, requests[1].request_id: 'r0-1' is also the id of requests[0]."),
        ("r0-1", "r0, count: 3", "line 14, requests[1].id: 'r0-1' is also the id of requests[0]."),
        ("r0, count: 3", "r0, count: 2", "line 14, requests[1].request_id: 'r0-0' is also the id of requests[0]."),
    ],
)
def test_an_id_that_a_count_repeats_is_reported_with_the_requests_of_the_file(
    first: str, second: str, sentence: str
) -> None:
    alike = USERS.replace("request_id: r0", f"request_id: {first}").replace("request_id: r1", f"request_id: {second}")
    with pytest.raises(WrongInput) as refused:
        read_problem(alike.encode())
    assert str(refused.value) == sentence


def test_the_documented_name_of_the_gpus_is_offered_for_an_unknown_one() -> None:
    with pytest.raises(WrongInput, match=r'Unknown name "xyzzy" in the file; known names: .*\bgpus\b'):
        read_problem((USERS + "xyzzy: 1\n").encode())


PREDICTED = """
models: {encoder: {memory_gb: 4}}
workflows:
  w:
    nodes:
      - {id: a, model: encoder, exec_time: predicted, work: {model: bert-base, batch: 8}}
      - {id: b, model: encoder, exec_time: 2}
requests:
  - {id: r0, workflow: w}
  - {id: r1, workflow: w, exec_times: {b: 5}}
gpus: {count: 2, type: H200}
"""


def test_a_predicted_time_is_asked_for_with_the_work_and_the_type_of_the_gpus() -> None:
    asked: list[object] = []

    def predict(work: Any, gpu: str) -> float:
        asked.append((work, gpu))
        return 0.25

    assert read_problem(PREDICTED.encode(), predict=predict).calls.seconds.tolist() == [0.25, 2, 0.25, 5]
    assert asked == [({"model": "bert-base", "batch": 8}, "H200")]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            ", work: {model: bert-base, batch: 8}",
            "",
            r"line 6, .*nodes\[0\]\.exec_time: to predict it, describe the work",
        ),
        (", type: H200", "", r"line 6, .*exec_time: to predict it, give the type of the GPUs"),
        ("predicted", "3", r"line 6, .*nodes\[0\]\.work: this needs exec_time: predicted"),
        ("", "", r"line 6, .*exec_time: this reader has no predictor"),
    ],
)
def test_a_time_that_cannot_be_predicted_is_reported_with_its_place(old: str, new: str, sentence: str) -> None:
    with pytest.raises(WrongInput, match=sentence):
        read_problem(PREDICTED.replace(old, new).encode() if old else PREDICTED.encode())
