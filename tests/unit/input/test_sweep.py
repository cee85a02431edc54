"""Sweeps: values, combinations, placeholders, quoting and names."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.input.sweep import WrongSweep, axes_of, parse_axes, points_of, swept_tasks, variable_of


def values(text: str) -> list[str]:
    """The values of one key."""
    (axis,) = parse_axes([f"k={text}"])
    return [point["k"] for point in axis]


def commands(command: str | list[str], *texts: str) -> list[str | list[str]]:
    return [one.command for one in swept_tasks(command, points_of(parse_axes(texts)))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3,1e-4", ["1e-3", "1e-4"]), ("0..3", ["0", "1", "2", "3"]), ("3..1", ["3", "2", "1"]),
        ("0..100..50", ["0", "50", "100"]), ("0..5..2", ["0", "2", "4"]), ("08..10", ["08", "09", "10"]),
        ("0.1..0.3..0.1", ["0.1", "0.2", "0.3"]), ("-1..1", ["-1", "0", "1"]), ("a, b", ["a", "b"]),
        ("1..2,7", ["1", "2", "7"]), ("../data,../more", ["../data", "../more"]), ("a=b", ["a=b"]), ("x..y", ["x..y"]),
    ],
)  # fmt: skip
def test_values_are_listed_or_ranges(text: str, expected: list[str]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("k=range(0,10)", r"write k=0\.\.9, which includes both ends"), ("k=range(1,9,2)", r"k=1\.\.8\.\.2"),
        ("k=choice(a,b)", "list the values"), ("k=", "empty value"), ("k=a,,b", "empty value"), ("k", "is not a sweep"),
        ("k=0..1e9", "is not a range"), ("k=0..1..1e-300", "is not a range"), ("k=0..1e18", "without an exponent"),
        ("k=0..1234567890123456789", "at most 18 digits"), ("k=0.1..0.2", "needs a step"), ("k=0..9..0", "cannot be 0"), ("k=0..99999999", "maximum"),
        ("index=1,2", "meaning of its own"), ("a b=1", "is not a key"), ("=1", "is not a key"), ("k=@nothing.txt", "nothing.txt"),
        ("@grid.txt", "not a grid"), ("@", "not followed"), ("k=@", "not followed"),
    ],
)  # fmt: skip
def test_wrong_sweeps_are_refused_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(WrongSweep, match=sentence) as refused:
        parse_axes([text], tmp_path)
    assert "\n" not in str(refused.value)


def test_all_combinations_or_side_by_side() -> None:
    axes = parse_axes(["lr=a,b", "seed=0..1"])
    assert [tuple(point.values()) for point in points_of(axes)] == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]
    assert [tuple(point.values()) for point in points_of(axes, side_by_side=True)] == [("a", "0"), ("b", "1")]
    with pytest.raises(WrongSweep, match="lr has 2, seed has 3"):
        points_of(parse_axes(["lr=a,b", "seed=0..2"]), side_by_side=True)
    with pytest.raises(WrongSweep, match="given twice"):
        points_of(parse_axes(["lr=a,b", "lr=c"]))
    with pytest.raises(WrongSweep, match="maximum is 10,000"):
        points_of(parse_axes(["a=0..200", "b=0..200"]))
    with pytest.raises(WrongSweep, match="share the variable"):
        points_of(parse_axes(["a.b=1", "a_b=2"]))


def test_files_have_lines_tables_or_lists(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("one\n\ntwo words\r\n")
    (tmp_path / "grid.csv").write_text('lr,name\n0.1,"a, b"\n\n0.2,c\n')
    (tmp_path / "grid.yaml").write_text("lr: [1e-3, 0.20]\nseed: 0..2\n")
    (tmp_path / "points.json").write_text('[{"lr": 0.1, "on": true}, {"lr": 1, "on": false}]')
    assert parse_axes(["k=@names.txt"], tmp_path) == [[{"k": "one"}, {"k": "two words"}]]
    assert parse_axes(["@grid.csv"], tmp_path) == [[{"lr": "0.1", "name": "a, b"}, {"lr": "0.2", "name": "c"}]]
    points = points_of(parse_axes(["@grid.yaml"], tmp_path))
    assert [point["lr"] for point in points] == ["1e-3"] * 3 + ["0.20"] * 3, "numbers stay as they are written"
    assert parse_axes(["@points.json"], tmp_path) == [[{"lr": "0.1", "on": "true"}, {"lr": "1", "on": "false"}]]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("g.csv", "a,b\n1\n", "line 2"), ("g.csv", "a,a\n1,2\n", "twice"), ("g.csv", "a\n", "no rows"), ("g.csv", "a b\n1\n", "key"),
        ("g.csv", 'a\n"x\n', "line"), ("g.json", "3", "neither"), ("g.json", "[{}]", "neither"), ("g.json", '{"a": null}', "a has"),
        ("g.json", '[{"a":1},{"b":1}]', "point 2"), ("g.yaml", "a: [\n", "line"), ("g.yaml", "a: [[1]]", "a has"),
        ("g.csv", "\xff".encode("latin-1"), "UTF-8"),
    ],
)  # fmt: skip
def test_damaged_grids_name_file_and_place(name: str, content: str | bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(WrongSweep, match=sentence) as refused:
        parse_axes([f"@{name}"], tmp_path)
    assert name in str(refused.value)


def test_placeholders_are_replaced_inside_arguments() -> None:
    words = ["python", "t.py", "--lr={lr}", "{seed}", "run-{index}", "{{x}}", "${HOME}", "a}b"]
    assert commands(words, "lr=1e-3", "seed=7") == [
        ["python", "t.py", "--lr=1e-3", "7", "run-0", "{x}", "${HOME}", "a}b"]
    ]


def test_all_values_together() -> None:
    assert commands(["t", "{args}"], "lr=1e-3", "s=a b") == [["t", "--lr", "1e-3", "--s", "a b"]]
    assert commands(["t", "{hydra}"], "opt.lr=1e-3", "s=0") == [["t", "opt.lr=1e-3", "s=0"]]
    assert commands("t {args}", "s=a b") == ["t --s 'a b'"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("t {lrr} {seed}", "did you mean {lr}"), ("t {lr}", "seed is not used"), ("t {lr} {seed} {}", "for a brace"),
        ("t ${lr} {seed}", "belongs to the shell"), ("t {lr} {seed} {", "for a brace"), (["t", '{"a": 1}', "{args}"], "for a brace"),
    ],
)  # fmt: skip
def test_unknown_and_unused_keys_are_refused(command: str | list[str], sentence: str) -> None:
    with pytest.raises(WrongSweep, match=sentence):
        commands(command, "lr=1", "seed=2")


def test_a_key_may_be_used_in_a_variable_or_read_by_a_script() -> None:
    points = points_of(parse_axes(["lr=1", "seed=2"]))
    (one,) = swept_tasks("t", points, env={"A": "{lr}{seed}", "B": "{other}"})
    assert one.env == {"A": "12", "B": "{other}", "GPUYARD_PARAM_LR": "1", "GPUYARD_PARAM_SEED": "2"}
    assert swept_tasks(["job.sh"], points, read_by="echo $GPUYARD_PARAM_LR $GPUYARD_PARAM_SEED")
    assert swept_tasks("echo $GPUYARD_PARAM_LR {seed}", points)
    assert variable_of("opt.lr") == "GPUYARD_PARAM_OPT_LR"


@pytest.mark.parametrize(
    ("command", "base"),
    [
        (["python", "-u", "dir/train.py", "{lr}"], "train"), ("python3.11 train.py {lr}", "train"), (["./run.sh", "{lr}"], "run"),
        (["uv", "run", "python", "a.py", "{lr}"], "a"), ("A=1 ./prog {lr}", "prog"), (["{lr}"], "sweep"), (["sh", "-c", "{lr}"], "sweep"),
    ],
)  # fmt: skip
def test_names_have_the_program_before_the_bracket(command: str | list[str], base: str) -> None:
    (one,) = swept_tasks(command, [{"lr": "1e-3"}])
    assert one.name == f"{base}[lr=1e-3]"


def test_names_stay_short() -> None:
    point = {f"key{number}": "x" * 60 for number in range(10)}
    (one,) = swept_tasks(["t", "{args}"], [point], name="base")
    assert len(one.name) <= 200
    assert one.name.startswith("base[key0=xxx")
    assert one.name.endswith("…]")


def test_python_values_become_text() -> None:
    assert axes_of({"lr": [1e-3, 1e-4], "seed": range(2), "flag": [True], "path": [Path("/x")], "k": "0..1", "one": 5}) == [
        [{"lr": "0.001"}, {"lr": "0.0001"}], [{"seed": "0"}, {"seed": "1"}], [{"flag": "True"}], [{"path": "/x"}],
        [{"k": "0"}, {"k": "1"}], [{"one": "5"}],
    ]  # fmt: skip
    wrongs: list[dict[str, list[object]]] = [{"a": []}, {"a": [None]}, {"a": [[1]]}, {"a b": [1]}]
    for wrong in wrongs:
        with pytest.raises(WrongSweep):
            axes_of(wrong)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    TEXT, st.sampled_from(["{v}", "'{v}'", '"{v}"', "x{v}y", "'x{v}'", '"x{v}"', "a'b'{v}", '"$HOME"{v}', "a\\'{v}"])
)
def test_a_value_reaches_the_program_unchanged_whatever_the_quotes(value: str, place: str) -> None:
    def printed(text: str) -> str:
        line = f"printf %s {place}"
        (one,) = swept_tasks(line, [{"v": text}])
        assert isinstance(one.command, str)
        done = subprocess.run(["sh", "-c", one.command], capture_output=True, check=True, env={"HOME": "/h"})
        return done.stdout.decode()

    assert printed(value) == printed("VALUE").replace("VALUE", value)


@pytest.mark.parametrize(
    "line", ["echo $(echo {v})", "cat <<E\n{v}\nE", "echo `{v}`", "true # it's {v}", "echo $'{v}'", "echo \\{v}"]
)
def test_where_a_value_cannot_be_quoted_safely_only_plain_ones_are_inserted(line: str) -> None:
    assert swept_tasks(line, [{"v": "1e-3"}])
    with pytest.raises(WrongSweep, match="cannot be quoted safely"):
        swept_tasks(line, [{"v": "a b; rm"}])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_any_sweep_and_command_work_or_are_refused(sweep: str, command: str) -> None:
    try:
        points = points_of(parse_axes([sweep.replace("@", "")]))
        swept = swept_tasks([command], points)
    except WrongSweep:
        return
    assert len(swept) == len(points)
