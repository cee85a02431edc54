from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.supervised import Supervised, end_everything_of


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
