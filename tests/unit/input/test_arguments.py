"""Arguments of Python functions fit their type, or are refused in one sentence."""

from fractions import Fraction
from math import inf, nan
from typing import Annotated, Any

import numpy as np
import pytest
from msgspec import Meta

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.arguments import Function, argument, names

Rounds = Annotated[int, Meta(ge=1, le=10)] | None
Part = Annotated[float, Meta(ge=0, le=1)]


class Numpy:
    """A number of another library."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __float__(self) -> float:
        return self._value


class NumpyInt(Numpy):
    """A whole one."""

    def __index__(self) -> int:
        return int(self._value)


@pytest.mark.parametrize(
    ("value", "type_", "found"),
    [(3, Rounds, 3), (None, Rounds, None), (1, Part, 1), (0.5, Part, 0.5), (NumpyInt(3), Rounds, 3), (Numpy(0.5), Part, 0.5),
     (np.True_, bool, True), (np.int32(3), Rounds, 3), (np.float64(0.5), Part, 0.5), (len, Function, len)],
)  # fmt: skip
def test_an_argument_that_fits_is_returned(value: Any, type_: Any, found: object) -> None:
    given = argument("it", value, type_)
    assert (given, type(given)) == (found, type(found))


@pytest.mark.parametrize(
    ("value", "type_", "sentence"),
    [
        (0, Rounds, "it is 0; it must be a whole number from 1 to 10."),
        (10**400, Rounds, "it is a number with too many digits; it must be a whole number from 1 to 10."),
        (1.5, Rounds, "it is 1.5; it must be a whole number from 1 to 10."),
        ("3", Rounds, 'it is "3"; it must be a whole number from 1 to 10.'),
        (True, Rounds, "it is true; it must be a whole number from 1 to 10."),
        (Numpy(3.0), Rounds, "it is 3.0; it must be a whole number from 1 to 10."),
        (nan, Part, "it is not a finite number; it must be a number from 0 to 1."),
        (-inf, Part, "it is not a finite number; it must be a number from 0 to 1."),
        (None, Part, "it is null; it must be a number from 0 to 1."),
        (object(), Part, "it is a object; it must be a number from 0 to 1."),
        (np.array([1, 2]), Part, "it is a ndarray; it must be a number from 0 to 1."),
        (np.True_, Part, "it is true; it must be a number from 0 to 1."),
        (np.int64(2), bool, "it is 2; it must be true or false."),
        (Fraction(10**400), Part, "it is a Fraction; it must be a number from 0 to 1."),
        (3, Function, "it is 3; it must be a function."),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_in_one_sentence(value: Any, type_: Any, sentence: str) -> None:
    with pytest.raises(WrongInput) as error:
        argument("it", value, type_)
    assert str(error.value) == sentence


def test_names_are_a_list_or_text_with_commas() -> None:
    assert names("gpus", "H200, A100,,") == names("gpus", ("H200", " A100", "")) == ["H200", "A100"]
    assert names("gpus", iter(["H200"])) == ["H200"]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "gpus is null; it must be a list of names, or text with commas between them."),
        (5, "gpus is 5; it must be a list of names, or text with commas between them."),
        (b"H200", "gpus is a bytes; it must be a list of names, or text with commas between them."),
        (["H200", None], "gpus[1] is null; it must be text."),
        (np.array(3), "gpus is 3; it must be a list of names, or text with commas between them."),
        ([[]], "gpus[0] is a list; it must be text."),
    ],
)
def test_what_are_no_names_is_refused_in_one_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(WrongInput) as error:
        names("gpus", value)
    assert str(error.value) == sentence
