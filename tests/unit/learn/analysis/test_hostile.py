"""Scripts that hide what they change run in every order that their analysis allows, with the files of the script itself."""

import pytest

from tests.unit.learn.analysis.hostile import HEAD, HOSTILE
from tests.unit.learn.analysis.orders import Tried, try_scripts


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tried]:
    folder = tmp_path_factory.mktemp("hostile")
    scripts = {}
    for name, source in HOSTILE.items():
        path = folder / "scripts" / name.replace(" ", "_") / "script.py"
        path.parent.mkdir(parents=True)
        path.write_text(HEAD + source)
        scripts[name] = path
    return try_scripts(scripts, folder / "runs", ["torch", "numpy", "pandas"], seeds=(0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_the_claimed_order_of_a_hostile_script_gives_its_result(tried: dict[str, Tried], name: str) -> None:
    assert tried[name].wrong == []
