"""The commands of the README and of the first steps, run verbatim on a new cluster."""

import re
import subprocess
import sys
from pathlib import Path

from tests.acceptance.cli_cluster import running_cluster

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_STEPS = (ROOT / "docs" / "manual" / "first_steps.md").read_text(encoding="utf-8")
ACTIVATE = ". .venv/bin/activate"


def block(page: str, language: str, containing: str) -> str:
    """The block of a page that shows this."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if containing in text]
    assert len(found) == 1, f"the page shows {containing!r} {len(found)} times"
    return str(found[0])


def test_the_first_steps_of_the_readme_work(tmp_path: Path) -> None:
    shown = block(README, "sh", "gpuyard run -g 1")
    assert shown.startswith(ACTIVATE)
    script = shown.replace(ACTIVATE, f"PATH={Path(sys.executable).parent}:$PATH")
    with running_cluster(tmp_path) as cluster:
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            env=cluster.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert re.search(r"^CUDA_VISIBLE_DEVICES=[0-3]$", done.stdout, re.MULTILINE)
        assert "task-2" in done.stdout
        assert "The task needs 8 GPUs of one model on a node" in done.stdout


def test_the_curl_call_and_the_program_of_the_first_steps_work(tmp_path: Path) -> None:
    call = block(FIRST_STEPS, "sh", "curl -X POST")
    program = block(FIRST_STEPS, "py", "gpuyard.connect()")
    with running_cluster(tmp_path) as cluster:
        call = call.replace("http://localhost:8080", cluster.url)
        done = subprocess.run(["sh", "-c", call], capture_output=True, text=True, timeout=30, check=True)
        assert '"status":"pending"' in done.stdout
        ran = subprocess.run(
            [sys.executable, "-c", program], env=cluster.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert "success b'hello\\n'" in ran.stdout
        assert "CUDA_VISIBLE_DEVICES" in ran.stdout
