"""The setup command of a task: it runs before the command, in the same shell, so that what it activates stays active.

    /bin/sh -c TEXT SETUP_WORD SETUP     the text runs the setup and becomes the command when that has succeeded

The words of the command are in the text and not among the arguments of the shell, which a setup can change: some scripts
that are sourced contain `set --`. The text is one line for the shell, so that an alias of the setup does not reach it either.

The scheduler makes this command line, so that every agent can run it. The agent reads the last line of the output of an
attempt that failed, to tell a failed setup from a failed command.
"""

import re
import shlex
from collections.abc import Sequence

SETUP_WORD = "gpuyard-setup"
"""The name of the shell in lists of processes."""
_BEFORE = (
    "trap 'code=$?; [ $code != 0 ] || code=1; "
    'echo "gpuyard: The setup command failed with exit code $code." >&2; exit $code\' EXIT; '
    'eval "$1" || exit; trap - EXIT; exec '
)
LAST_BYTES = 400
_FAILED = re.compile(rb"(?:^|\n)gpuyard: The setup command failed with exit code (\d+)\.\r?\n$")
_WHY = "The setup command failed, so the command was not started."


def with_setup(setup: str, command: Sequence[str] | str) -> tuple[str, ...]:
    """Return the command line of a task with a setup command."""
    words = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
    return ("/bin/sh", "-c", _BEFORE + shlex.join(words), SETUP_WORD, setup)


def has_setup(argv: Sequence[str]) -> bool:
    """Return whether a command line, made by any version of gpuyard, begins with a setup command."""
    return list(argv[:2]) == ["/bin/sh", "-c"] and list(argv[3:4]) == [SETUP_WORD]


def failed_setup(output: bytes, exit_code: int | None) -> str:
    """Return a sentence if the output ends with the failure of the setup command; else nothing."""
    found = _FAILED.search(output)
    return _WHY if found and int(found[1]) == exit_code else ""
