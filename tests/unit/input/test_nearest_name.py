"""The nearest name: words of other programs mean a field, although another field looks more like them."""

import pytest

from gpuyard.cli.input.task_file import KNOWN_KEYS
from gpuyard.input.nearest_name import closest_word


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("gpu", "gpus"), ("num-gpus", "gpus"), ("cpus", "cpu_count"), ("cpu", "cpu_count"), ("mem", "memory"),
        ("ram", "memory"), ("vram", "gpu_memory"), ("gpu_type", "gpu_model"), ("cmd", "command"), ("script", "command"),
        ("deps", "depends_on"), ("needs", "depends_on"), ("after", "depends_on"), ("time", "timeout"),
        ("walltime", "timeout"), ("cwd", "work_dir"), ("environment", "env"), ("matrix", "sweep"), ("retry", "retries"),
        ("gpu-count", "gpu_count"), ("GPUS", "gpus"), ("comand", "command"), ("gpu_modle", "gpu_model"),
    ],
)  # fmt: skip
def test_a_key_of_another_program_is_answered_with_ours(word: str, meant: str) -> None:
    assert closest_word(word, KNOWN_KEYS) == meant


def test_a_word_that_is_known_is_itself_and_others_only_count_where_they_exist() -> None:
    assert closest_word("after", ["after", "depends_on"]) == "after"
    assert closest_word("cpus", ["gpus"]) == "gpus"
    assert closest_word("xyz", KNOWN_KEYS) is None
