"""Scripts that hide what they change run in every order that their analysis allows, with the files of the script itself."""

from pathlib import Path

import pytest

from tests.unit.learn.analysis import hostile_arrays, hostile_files, hostile_language, hostile_libraries
from tests.unit.learn.analysis.hostile import HEAD, HOSTILE
from tests.unit.learn.analysis.orders import mentions, try_scripts

LIBRARIES = ("torch", "torch._dynamo", "numpy", "pandas", "scipy")
MORE = hostile_libraries.SCRIPTS
SCRIPTS = HOSTILE | hostile_language.SCRIPTS | hostile_files.SCRIPTS | hostile_arrays.SCRIPTS | MORE
NAMES = {
    "with libraries": [name for name in SCRIPTS if name not in MORE and mentions(SCRIPTS[name], LIBRARIES)],
    "with arguments of libraries": list(MORE),
    "of objects and names": [name for name, source in HOSTILE.items() if not mentions(source, LIBRARIES)],
    "of the language": [name for name, source in hostile_language.SCRIPTS.items() if not mentions(source, LIBRARIES)],
    "of files": [name for name, source in hostile_files.SCRIPTS.items() if not mentions(source, LIBRARIES)],
    "of containers": [name for name, source in hostile_arrays.SCRIPTS.items() if not mentions(source, LIBRARIES)],
}


@pytest.mark.slow
@pytest.mark.parametrize("group", NAMES)
def test_the_claimed_orders_of_hostile_scripts_give_their_results(tmp_path: Path, group: str) -> None:
    scripts = {}
    for name in NAMES[group]:
        path = tmp_path / "scripts" / name.replace(" ", "_") / "script.py"
        path.parent.mkdir(parents=True)
        path.write_text(HEAD + SCRIPTS[name])
        scripts[name] = path
    tried = try_scripts(scripts, tmp_path / "runs", LIBRARIES, seeds=(0, 1))
    assert {name: one.wrong for name, one in tried.items() if one.wrong} == {}


def test_every_hostile_script_is_in_one_group() -> None:
    assert sorted(name for names in NAMES.values() for name in names) == sorted(SCRIPTS)
