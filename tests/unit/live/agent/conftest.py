import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.live.agent.supervised import Supervised, end_everything_of


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path / "work")
    yield supervised
    supervised.clean_up()


@pytest.fixture
def work_dir(tmp_path: Path) -> Iterator[Path]:
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    yield work_dir
    end_everything_of(work_dir / "supervisor")


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that can be taken away; the supervisor uses it."""
    home = Path(sys.prefix)
    link = tmp_path / "venv" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(Path(sys.executable).resolve())
    (link.parents[1] / "lib").symlink_to(home / "lib")
    (link.parents[1] / "pyvenv.cfg").write_text((home / "pyvenv.cfg").read_text())
    monkeypatch.setattr(sys, "executable", str(link))
    return link


@pytest.fixture
def upgraded(interpreter: Path, tmp_path: Path) -> Iterator[Supervised]:
    """A supervisor whose interpreter can be taken away."""
    assert interpreter.exists()
    supervised = Supervised(tmp_path / "work")
    supervised.end_of(supervised.launches("true"))  # its launcher is there
    yield supervised
    supervised.clean_up()
