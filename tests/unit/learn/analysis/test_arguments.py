"""Arguments of `analyze` that cannot be meant are refused in one sentence, and long names are no paths."""

from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.analysis import analyze


@pytest.mark.parametrize(
    ("path", "more", "sentence"),
    [
        (None, {}, "path is null; it must be the path of a file."),
        (5, {}, "path is 5; it must be the path of a file."),
        ("f" + ".a" * 5000 + "()", {}, "path is "),
        ("f" + ".a" * 300 + "()", {}, "f.a.a"),
        ("a.py", {"arguments": [5]}, "arguments[0] is 5; it must be text."),
        ("a.py", {"arguments": "--x"}, 'arguments is "--x"; it must be a list.'),
        ("a.py", {"seconds": {"a": float("nan")}}, "seconds.a is not a finite number; it must be a number from 0"),
        ("a.py", {"python": None}, "python is null; it must be text."),
    ],
)
def test_what_can_not_be_meant_is_refused_in_one_sentence(path: Any, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WrongInput) as error:
        analyze(path, **more)
    assert str(error.value).startswith(sentence)


def test_a_dotted_name_that_is_too_long_for_a_path_is_no_file(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text(f"import f\nf.{'a' * 300}()\n")
    assert len(analyze(script).tasks) == 1
