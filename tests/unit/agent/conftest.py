from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.supervised import Supervised


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path / "work")
    yield supervised
    supervised.clean_up()
