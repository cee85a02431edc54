"""`gpuyard explain`: why a task waits, what is ahead of it, and when it is likely to start."""

from typing import TYPE_CHECKING

import typer

from gpuyard.cli.options import Json, Server, Token, client
from gpuyard.cli.show import TaskId

if TYPE_CHECKING:
    from gpuyard.wire.answers import ExplainAnswer


def explain(task_id: TaskId, as_json: Json = False, server: Server = None, token: Token = None) -> None:
    """Say why a task waits, what is ahead of it, and when it is likely to start."""
    yard = client(server, token)
    told = yard.explain(task_id)
    if not as_json:
        typer.echo("\n".join(in_words(told)))
        return
    from gpuyard.cli.printing import print_answer

    print_answer(yard)


def in_words(told: "ExplainAnswer") -> list[str]:
    """A few sentences."""
    from gpuyard.cli.printing import counted

    words = [f"{told.task_id} is {told.status}. {told.reason or ''}".rstrip()]
    if told.status != "pending":
        here = told.nodes if told.status == "running" else []
        return words + ([f"Its GPUs are on {' and '.join(here)}."] if here else [])
    words.append(f"{counted(told.ahead, 'task')} {'goes' if told.ahead == 1 else 'go'} before it.")
    words.append(_when(told))
    return words


def _when(told: "ExplainAnswer") -> str:
    from gpuyard.cli.printing import spoken_instant

    if told.starts_at is None:
        unknown = (
            ": not all that is ahead of it, or runs now, said how long it takes (--estimate)" if told.ahead else ""
        )
        return f"Nobody can say when it starts{unknown}."
    likely, low, high = map(spoken_instant, (told.starts_at, told.starts_low, told.starts_high))
    where = f" on {' and '.join(told.nodes)}" if told.nodes else ""
    if low and high and low != high:
        return f"It is likely to start at {likely}{where}, between {low} and {high}."
    return f"It is likely to start at {likely}{where}."
