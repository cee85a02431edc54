"""The generated page about the commands: complete, and equal to `--help`."""

from tools.manual.commands import GROUPS, verbs
from tools.manual.pages import all_verbs


def test_every_command_is_in_a_group() -> None:
    assert {path.split()[1] for path, _ in verbs()} == {name for names in GROUPS.values() for name in names}


def test_every_option_has_a_description() -> None:
    for path, verb in verbs():
        assert verb.help, path
        for parameter in verb.params:
            assert parameter.name in {"help", "context"} or parameter.help, f"{path}: {parameter.name}"


def test_every_command_and_option_is_in_the_page() -> None:
    page = all_verbs()
    for path, verb in verbs():
        assert f"# {path}\n" in page
        section = page.split(f"# {path}\n", 1)[1].split("\n#", 1)[0]
        options = [name for parameter in verb.params for name in parameter.opts if name.startswith("-")]
        assert [name for name in options if name != "--help" and f"`{name}`" not in section] == []
