"""How `#SBATCH` lines are read: as sbatch does, or refused with the line."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.cli.slurm.options import NEEDS, SHORT, SbatchOptions, WrongDirective
from gpuyard.cli.slurm.script import is_job_script, parse_script, split_directive


def read(*lines: str, first: str = "#!/bin/bash") -> dict[str, str]:
    """The options of a script with these lines."""
    return parse_script("job.sh", "\n".join([first, *lines]).encode()).options.values


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#SBATCH --job-name=a", {"job-name": "a"}), ("#SBATCH --job-name a", {"job-name": "a"}), ("#SBATCH -J a", {"job-name": "a"}),
        ("#SBATCH -Ja", {"job-name": "a"}), ("#SBATCH\t-J\ta", {"job-name": "a"}), ("#SBATCH -J 'a b' # c", {"job-name": "a b"}),
        ('#SBATCH -J "a \'b" -c4', {"job-name": "a 'b", "cpus-per-task": "4"}), ("#SBATCH -J a\\ b", {"job-name": "a b"}),
        ("#SBATCH --out=x", {"output": "x"}), ("#SBATCH --constrain=x", {"constraint": "x"}), ("#SBATCH --mem=4", {"mem": "4"}),
        ("#SBATCH -J a#b", {"job-name": "a"}), ("#SBATCH --exclusive -n 2", {"exclusive": "", "ntasks": "2"}),
        ("#SBATCH --exclusive=user", {"exclusive": "user"}), ("#SBATCH -QO -c 1", {"quiet": "", "overcommit": "", "cpus-per-task": "1"}),
        ("#SBATCH", {}), ("#SBATCH # nothing", {}), ("#SBATCHX -J a", {}), ("##SBATCH -J a", {}), ("# SBATCH -J a", {}),
        (" #SBATCH -J a", {}), ("#SBATCH --nice -J a", {"nice": "", "job-name": "a"}), ("#SBATCH -J ''", {"job-name": ""}),
        ("#SBATCH -s", {"oversubscribe": ""}), ("#SBATCH --requeue --no-requeue", {"no-requeue": ""}),
    ],
)  # fmt: skip
def test_a_line_is_read_as_sbatch_reads_it(line: str, expected: dict[str, str]) -> None:
    assert read(line) == expected


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("#SBATCH --gpu=1", "job.sh, line 2: --gpu is ambiguous: --gpu-bind"), ("#SBATCH --cpu-per-task=1", "did you mean --cpus-per-task"),
        ("#SBATCH word", "'word' is not an option"), ("#SBATCH --time", "--time needs a value"), ("#SBATCH -t", "-t needs a value"),
        ("#SBATCH --requeue=1", "takes no value"), ("#SBATCH -J 'a", "is not closed"), ("#SBATCH -y", "Unknown option -y"),
        ("#SBATCH hetjob", "heterogeneous"), ("#SBATCH --zzzzzz", "not an option of sbatch"), ("#SBATCH -J a b", "'b' is not an option"),
    ],
)  # fmt: skip
def test_wrong_lines_are_refused_with_their_number(line: str, sentence: str) -> None:
    with pytest.raises(WrongDirective, match=sentence) as refused:
        read(line)
    assert str(refused.value).startswith("job.sh, line 2: ")


def test_the_last_one_wins_and_lines_after_a_command_are_named() -> None:
    script = parse_script("job.sh", b"#!/bin/sh\n\n# c\n#SBATCH -c 1\n#SBATCH -c 2\necho\n#SBATCH -c 3\n#SBATCH -n 1\n")
    assert script.options.values == {"cpus-per-task": "2"}
    assert script.remarks == ("#SBATCH in lines 7, 8 has no effect, because a command precedes it",)


def test_line_ends_of_windows_are_removed_and_named() -> None:
    script = parse_script("job.sh", b"#!/bin/bash\r\n#SBATCH -J a\r\necho hi\r\n")
    assert (script.options.values, script.text) == ({"job-name": "a"}, "#!/bin/bash\n#SBATCH -J a\necho hi\n")
    assert script.remarks == ("line ends of Windows were removed",)


@pytest.mark.parametrize("content", [b"echo", b"", b"#!/bin/sh\n\xff", b"#!/bin/sh\n\0"])
def test_what_is_not_a_script_is_refused(content: bytes) -> None:
    with pytest.raises(WrongDirective, match=r"job\.sh"):
        parse_script("job.sh", content)


def test_variables_override_the_file_and_the_command_line_overrides_both() -> None:
    script = parse_script("job.sh", b"#!/bin/sh\n#SBATCH -t 1 -J file -a 1-3 --requeue\n")
    script.options.add_variables(
        {"SBATCH_TIMELIMIT": "2", "SBATCH_JOB_NAME": "variable", "SBATCH_NO_REQUEUE": "1", "SBATCH_X": "y"}
    )
    assert script.options.values == {"time": "2", "job-name": "variable", "array": "1-3", "no-requeue": ""}
    assert script.options.place("time") == "SBATCH_TIMELIMIT: "


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        ("#!/bin/bash\n#SBATCH -n 1\n", True), ("\n# c\n\n#SBATCH\n", True), ("#!/bin/bash\necho\n#SBATCH -n 1\n", False),
        ("#!/usr/bin/python3\nTEXT = \"\"\"\n#SBATCH -n 1\n\"\"\"\n", False), ("#!/bin/sh\n##SBATCH\n#SBATCHX\n", False), ("", False),
    ],
)  # fmt: skip
def test_a_file_is_a_job_script_if_it_has_lines_before_its_first_command(
    content: str, is_one: bool, tmp_path: Path
) -> None:
    (tmp_path / "job.sh").write_text(content)
    assert is_job_script(tmp_path / "job.sh") is is_one
    assert not is_job_script(tmp_path)
    assert not is_job_script(tmp_path / "missing")


def test_options_end_at_the_script() -> None:
    options = SbatchOptions()
    assert options.add(["-J", "a", "--time=5", "job.sh", "-n", "4"], "") == ["job.sh", "-n", "4"]
    assert options.add(["--", "-odd.sh"], "") == ["-odd.sh"]
    assert options.add(["-", "x"], "") == ["-", "x"]
    assert options.values == {"job-name": "a", "time": "5"}


def test_every_short_option_has_a_long_one() -> None:
    assert set(SHORT.values()) <= set(NEEDS)
    assert len(NEEDS) > 90


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=40)


@given(TEXT)
def test_any_line_is_read_or_refused_in_one_sentence(text: str) -> None:
    said = ""
    try:
        read(f"#SBATCH {text}")
    except WrongDirective as refused:
        said = str(refused)
    assert said == "" or said.startswith("job.sh")
    assert "\n" not in said


@given(
    st.lists(
        st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\\'"), min_size=1), max_size=5
    )
)
def test_quoted_words_are_read_back(words: list[str]) -> None:
    assert split_directive(" " + " ".join(f"'{word}'" for word in words)) == words


@given(st.lists(st.from_regex(r"\A[A-Za-z0-9_@%+=:,./-]{1,10}\Z"), max_size=5))
def test_plain_words_are_read_as_a_shell_reads_them(words: list[str]) -> None:
    assert split_directive(shlex.join(words)) == words


@given(st.sampled_from(sorted(NEEDS)), st.integers(1, 30))
def test_an_unambiguous_prefix_means_its_option(name: str, length: int) -> None:
    prefix = name[:length]
    word = f"--{prefix}=1" if NEEDS[name] else f"--{prefix}"
    matching = [other for other in NEEDS if other.startswith(prefix)]
    try:
        assert list(read(f"#SBATCH {word}")) == [prefix if prefix in NEEDS else matching[0]]
    except WrongDirective:
        assert (prefix not in NEEDS and len(matching) > 1) or NEEDS.get(prefix) != NEEDS[name]
