"""The stills of the manual are made by the commands themselves, and are small pictures without scripts or fonts."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools import stills

MANUAL = Path(__file__).parents[3] / "docs" / "manual"
SVG = "{http://www.w3.org/2000/svg}"


def text_of(picture: str) -> str:
    root = ET.fromstring(picture)
    assert {one.tag for one in root.iter()} <= {f"{SVG}{name}" for name in ("svg", "style", "rect", "text", "tspan")}
    return "\n".join("".join(line.itertext()) for line in root.iter(f"{SVG}text"))


@pytest.mark.slow
def test_all_stills_can_be_made_again() -> None:
    made = stills.stills()
    assert set(made) == {path.name for path in MANUAL.glob("seeing_*.svg")}
    assert max(len(picture) for picture in made.values()) < 64 * 1024
    assert "running" in text_of(made["seeing_ps.svg"])
    assert "pending" in text_of(made["seeing_ps.svg"])
    assert "1,600" in text_of(made["seeing_gpus.svg"])
    assert "GPUs busy" in text_of(made["seeing_top.svg"])
    page = (MANUAL / "seeing.md").read_text(encoding="utf-8")
    assert all(f"({name})" in page for name in made)


def test_colors_and_text_are_kept() -> None:
    runs = stills.runs_of("\x1b[32mok\x1b[0m then \x1b[1mbold\x1b[0m <&")
    assert [(run.text, run.color, run.bold) for run in runs] == [
        ("ok", "green", False), (" then ", "white", False), ("bold", "white", True), (" <&", "white", False),
    ]  # fmt: skip
    assert text_of(stills.svg_of([runs], 40)) == "ok then bold <&"
