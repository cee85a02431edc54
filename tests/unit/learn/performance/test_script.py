"""The model of a training script is found without running the script."""

from pathlib import Path

import pytest

from gpuyard.learn.performance.script import main


@pytest.mark.slow
@pytest.mark.parametrize("line", ["odd = {[]: 1}", "odd = {{}, ()}", "odd = " + "-" * 500 + "1", "odd = -'a'"])
def test_a_line_that_is_no_plain_value_does_not_hide_the_model(line: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{line}\nmodel = torch.nn.Linear(8, 8)\n")
    assert main(script)["model"] == "Linear"
