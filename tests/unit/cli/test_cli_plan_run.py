"""`gpuyard plan run`, before anything is run."""

from pathlib import Path

import pytest

from tests.unit.cli.test_cli_plan import Plan, Said, chain, plan

__all__ = ["chain", "plan"]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("models: {'*': {virtual: {fails: 2e1}}}", "models.*.virtual: drift and fails are parts, from 0 to 1."),
        ("models: {'*': virtual}\nmodels: {}", "line 2: 'models' stands twice in one object; keep one of them."),
        ("models: {'*': [", "line 2: the file ends too early; part of it is missing."),
        ("", "The file is empty."),
    ],
)
def test_a_bad_file_of_runtimes_gets_a_sentence(plan: Plan, chain: Path, tmp_path: Path, capsys: Said, said: str, sentence: str) -> None:  # fmt: skip
    file = tmp_path / "runtimes.yaml"
    file.write_text(said)
    assert plan("run", chain, "--runtimes", file) == 2
    assert capsys.readouterr().err == f"gpuyard: {file}: {sentence}\n"
