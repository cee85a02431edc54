"""Arguments of `partition` that cannot be meant are refused in one sentence, before anything is counted."""

from typing import Any

import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.partition import partition


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"path": None}, "path is null; it must be the path of a file."),
        ({"path": "a" * 300}, "aaa"),
        ({"model": None}, "model is null; it must be text."),
        ({"inputs": [None]}, "inputs[0] is null; it must be text."),
        ({"inputs": "1x1"}, 'inputs is "1x1"; it must be a list.'),
        ({"gpu": None}, "gpu is null; it must be text."),
        ({"gpus": 0}, "gpus is 0; it must be a whole number from 1 to 1,024."),
        ({"gpus": "2"}, 'gpus is "2"; it must be a whole number from 1 to 1,024.'),
        ({"micro_batches": 1.5}, "micro_batches is 1.5; it must be a whole number from 1 to 1,000,000."),
        ({"link_gbs": float("nan")}, "link_gbs is not a finite number; it must be a number from 0.001 to 1,000,000."),
        ({"limit_seconds": -1}, "limit_seconds is -1; it must be a number from 1 to 31,536,000."),
        ({"precision": 5}, "precision is 5; it must be text."),
        ({"precision": np.array([1, 2])}, "precision is a ndarray; it must be text."),
        ({"precision": "x" * 3000}, f"Unknown precision '{'x' * 60}…'; known precisions: fp32"),
        ({"specs": 3}, "specs must be a GpuSpecs, as read_specs returns it."),
        ({"training": "no"}, 'training is "no"; it must be true or false.'),
    ],
)
def test_what_can_not_be_meant_is_refused_in_one_sentence(changed: dict[str, Any], sentence: str) -> None:
    asked: dict[str, Any] = {"path": "net.py", "model": "Net", "inputs": ["1x1"], **changed}
    with pytest.raises(WrongInput) as error:
        partition(**asked)
    assert str(error.value).startswith(sentence)
