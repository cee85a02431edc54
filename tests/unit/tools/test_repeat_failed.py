"""Tests that failed beside others decide the result when they are run alone."""

import json
from pathlib import Path

import pytest

from tools import repeat_failed


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_two.py").write_text("def test_right(): pass\ndef test_wrong(): assert 0\n")
    return tmp_path


def recorded(project: Path, *tests: str) -> Path:
    path = project / "lastfailed"
    path.write_text(json.dumps(dict.fromkeys(tests, True)))
    return path


def test_a_test_that_passes_alone_is_named_and_passes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repeat_failed.main(recorded(project, "test_two.py::test_right")) == 0
    assert "test_two.py::test_right" in capsys.readouterr().out


def test_a_test_that_fails_alone_fails_the_run(project: Path) -> None:
    assert repeat_failed.main(recorded(project, "test_two.py::test_right", "test_two.py::test_wrong")) == 1


def test_the_cases_of_one_test_count_once(project: Path) -> None:
    (project / "test_cases.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(20))\ndef test_case(n): pass\n"
    )
    assert repeat_failed.main(recorded(project, *(f"test_cases.py::test_case[{number}]" for number in range(20)))) == 0


def test_many_failures_and_an_unknown_end_are_not_repeated(project: Path) -> None:
    many = [f"test_two.py::test_{number}" for number in range(repeat_failed.MOST + 1)]
    assert repeat_failed.main(recorded(project, *many)) == 1
    assert repeat_failed.main(project / "absent") == 1
