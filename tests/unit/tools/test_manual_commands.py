"""The generated page about the commands: complete, and equal to `--help`."""

from tools.manual.commands import GROUPS, commands
from tools.manual.pages import all_commands


def test_every_command_is_in_a_group() -> None:
    assert {path.split()[1] for path, _ in commands()} == {name for names in GROUPS.values() for name in names}


def test_every_option_has_a_description() -> None:
    for path, command in commands():
        assert command.help, path
        for parameter in command.params:
            assert parameter.name in {"help", "context"} or parameter.help, f"{path}: {parameter.name}"


def test_every_command_and_option_is_in_the_page() -> None:
    page = all_commands()
    for path, command in commands():
        assert f"# {path}\n" in page
        section = page.split(f"# {path}\n", 1)[1].split("\n#", 1)[0]
        options = [name for parameter in command.params for name in parameter.opts if name.startswith("-")]
        assert [name for name in options if name != "--help" and f"`{name}`" not in section] == []
