"""Options with several values: `--train one.csv two.csv` as well as `--train one.csv --train two.csv`."""

from typing import Any

from typer.core import TyperCommand


class MultiValueCommand(TyperCommand):
    """A command whose multi-value options need to be given only once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each further value."""
        many = {name for parameter in self.params if getattr(parameter, "multiple", False) for name in parameter.opts}
        said: list[str] = []
        option, first = "", True
        for word in args:
            if word.startswith("-"):
                option, first = word if word in many else "", True
            elif option and not first:
                said.append(option)
            else:
                first = False
            said.append(word)
        return super().parse_args(ctx, said)
