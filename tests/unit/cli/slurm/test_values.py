"""The values of sbatch's options, in Slurm's meaning."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.cli.slurm import values
from gpuyard.cli.slurm.values import AskedGpus, Constraint, SignalBeforeLimit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("90:30", 5460), ("1:00:00", 3600), ("0:0:1", 60), ("1-0", 86400), ("1-12", 129600), ("1-12:30", 131400),
        ("1-00:00:01", 86460), ("0", None), ("UNLIMITED", None), ("infinite", None), ("-1", None), ("00:30:00", 1800),
    ],
)  # fmt: skip
def test_a_plain_number_is_minutes(text: str, seconds: float | None) -> None:
    assert values.seconds_of_time(text) == seconds


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("2h", "write 120"),
        ("30m", "write 30"),
        ("90s", "write 2"),
        ("soon", "MINUTES"),
        ("1:2:3:4", "MINUTES"),
        ("", "MINUTES"),
        ("9" * 20, "longer"),
    ],
)
def test_units_are_refused_with_the_form_of_slurm(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        values.seconds_of_time(text)


@pytest.mark.parametrize(
    ("text", "gpus", "others"),
    [
        ("gpu", AskedGpus(1, None), []), ("gpu:2", AskedGpus(2, None), []), ("gpu:a100", AskedGpus(1, "a100"), []),
        ("gpu:a100:4", AskedGpus(4, "a100"), []), ("GPU:2", AskedGpus(2, None), []), ("gpu:2(S:0-1)", AskedGpus(2, None), []),
        ("gres:gpu:1", AskedGpus(1, None), []), ("vmem:24g,gpu:1", AskedGpus(1, None), ["vmem:24g"]), ("dcu:4", None, ["dcu:4"]),
        ("gpu:0", AskedGpus(0, None), []), ("gpu:nvidia_a100-sxm4-80gb:1", AskedGpus(1, "nvidia_a100-sxm4-80gb"), []), ("none", None, ["none"]),
    ],
)  # fmt: skip
def test_gres_has_gpus_and_other_things(text: str, gpus: AskedGpus | None, others: list[str]) -> None:
    assert values.gpus_of_gres(text) == (gpus, others)


@pytest.mark.parametrize("text", ["gpu:a100:x", "gpu:a:1:2", "gpu:a100:1,gpu:v100:1", "gpu:", "gpu:a100:-1"])
def test_other_gres_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        values.gpus_of_gres(text)


@pytest.mark.parametrize(
    ("text", "gpus"), [("4", AskedGpus(4, None)), ("a100:2", AskedGpus(2, "a100")), ("0", AskedGpus(0, None))]
)
def test_gpus_have_an_optional_type(text: str, gpus: AskedGpus) -> None:
    assert values.gpus_of(text) == gpus


def test_array_indices() -> None:
    array = values.array_of("1-5:2,9%2")
    assert (array.segments, array.limit, array.count, array.least, array.most, array.step) == (
        ((1, 2, 3), (9, 1, 1)),
        2,
        4,
        1,
        9,
        1,
    )
    assert values.array_of("0-15:4").step == 4
    assert values.array_of("7").segments == ((7, 1, 1),)
    for wrong in ("", "5-1", "1-5:0", "a", "1,1", "0-99999", "1%0", "1%x", "-3", "1-", "1,,2"):
        with pytest.raises(ValueError, match=r"\w"):
            values.array_of(wrong)


def test_dependencies() -> None:
    assert values.dependencies_of("afterok:1:task-2,afterany:3") == (["1", "2"], ["3"])
    for wrong in (
        "after:1",
        "afternotok:1",
        "singleton",
        "afterok",
        "afterok:1_2",
        "afterok:x",
        "afterok:1?afterok:2",
        "1",
    ):
        with pytest.raises(ValueError, match=r"\w"):
            values.dependencies_of(wrong)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a100|h100", Constraint(("a100", "h100"))), ("A100&vram40", Constraint(("A100",), 38093)), ("gpu80g", Constraint((), 76186)),
        ("gmem24", Constraint((), 22856)), ("80gb", Constraint((), 76186)), ("rtx_3090", Constraint(("rtx_3090",))), ("2080ti", Constraint(("2080ti",))),
        ("haswell|skylake", Constraint((), 0, ("haswell|skylake",))), ("[rack1|rack2]", Constraint((), 0, ("[rack1|rack2]",))), ("a1", Constraint((), 0, ("a1",))),
        ("intel&a100", Constraint(("a100",), 0, ("intel",))),
    ],
)  # fmt: skip
def test_constraints_name_models_or_memory(text: str, meaning: Constraint) -> None:
    assert values.constraint_of(text) == meaning


def test_signals() -> None:
    assert values.signal_of("B:USR1@120") == SignalBeforeLimit("USR1", 120, only_script=True)
    assert values.signal_of("sigterm") == SignalBeforeLimit("TERM", 60, only_script=False)
    assert values.signal_of("10@5") == SignalBeforeLimit("USR1", 5, only_script=False)
    for wrong in ("", "B:", "NOTHING", "999", "USR1@", "USR1@x"):
        with pytest.raises(ValueError, match=r"\w"):
            values.signal_of(wrong)


READERS: list[Callable[[str], object]] = [
    values.seconds_of_time, values.memory_of, values.count_of, values.nodes_of, values.gpus_of_gres, values.gpus_of,
    values.array_of, values.dependencies_of, values.constraint_of, values.signal_of,
]  # fmt: skip


@given(st.sampled_from(READERS), st.text(max_size=20) | st.from_regex(r"\A[0-9a-z:,%@.-]{0,15}\Z"))
def test_any_text_has_a_meaning_or_is_refused(read: Callable[[str], object], text: str) -> None:
    try:
        read(text)
    except ValueError as refused:
        assert type(refused) is ValueError  # noqa: PT017 - not one of int() or of decoding
