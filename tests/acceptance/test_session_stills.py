"""The stills of sessions in the manual are made by the real program in a real terminal."""

from pathlib import Path

import pytest

from tests.unit.tools.test_stills import MANUAL, text_of
from tools import session_stills

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_sessions_can_be_shown_again() -> None:
    made = session_stills.stills({"": "en"})
    shown = {name: text_of(picture) for name, picture in made.items()}
    assert set(made) == {path.name for path in MANUAL.glob("session_*.svg") if "zh-CN" not in path.name}
    assert "16 tasks were submitted." in shown["session_sweep.svg"]
    assert "12 pending" in shown["session_sweep.svg"]
    assert "The task needs 4 GPUs on one node" in shown["session_explain.svg"]
    assert shown["session_terminal.svg"].splitlines()[-3:] == ["gpu> echo $x", "42", "gpu> exit"]
    assert shown["session_run.svg"].splitlines()[1:] == ["training on GPU 0", "3"]


def test_the_manual_shows_every_session() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (*MANUAL.glob("*.md"), ROOT / "README.zh-CN.md"))
    stills = sorted(path.name for path in MANUAL.glob("session_*.svg"))
    assert [name for name in stills if f"{name})" not in pages] == []
    assert len([name for name in stills if "zh-CN" in name]) == 2
