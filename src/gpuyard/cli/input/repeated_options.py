"""Options that take all the words behind them: `--train one.csv two.csv` as well as `--train one.csv --train two.csv`."""

from typing import Any

from typer.core import TyperCommand


class MultiValueCommand(TyperCommand):
    """A verb whose options of many values may be said once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say the option again before each further word."""
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
